//! Describes the commands and their options as data, from which bindings for other languages can generate functions.

use crate::build_whole_command;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

/// Describes every command: its path, its help and its arguments.
pub fn describe_commands() -> Value {
    let mut command = build_whole_command();
    command.build();
    let mut all = Vec::new();
    add_command_description(&command, &mut Vec::new(), &mut all);
    Value::Array(all)
}

fn add_command_description(command: &Command, path: &mut Vec<String>, all: &mut Vec<Value>) {
    if !path.is_empty() {
        let arguments = command.get_arguments();
        let arguments =
            arguments.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
        all.push(json!({
            "path": path,
            "about": command.get_about().map(ToString::to_string),
            "arguments": arguments.map(describe_argument).collect::<Vec<_>>(),
        }));
    }
    for inner in command.get_subcommands() {
        if inner.get_name() != "help" {
            path.push(inner.get_name().to_owned());
            add_command_description(inner, path, all);
            path.pop();
        }
    }
}

fn describe_argument(arg: &Arg) -> Value {
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let defaults = arg.get_default_values().iter();
    let ends = arg.get_num_args();
    json!({
        "name": arg.get_id().as_str(),
        "flag": arg.get_long(),
        "short": arg.get_short(),
        "help": arg.get_help().map(ToString::to_string),
        "value": arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string),
        "values": values.map(|value| json!({
            "name": value.get_name(),
            "help": value.get_help().map(ToString::to_string),
        })).collect::<Vec<_>>(),
        "defaults": defaults.map(|value| value.to_string_lossy()).collect::<Vec<_>>(),
        "is_switch": matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse),
        "is_value_optional": ends.is_some_and(|ends| ends.min_values() == 0 && ends.max_values() > 0),
        "is_repeatable": matches!(arg.get_action(), ArgAction::Append) || ends.is_some_and(|ends| ends.max_values() > 1),
        "is_required": arg.is_required_set(),
        "is_last": arg.is_last_set(),
        "is_global": arg.is_global_set(),
        "is_hidden": arg.is_hide_set(),
        "heading": arg.get_help_heading(),
    })
}
