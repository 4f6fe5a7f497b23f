//! Types of option values, and a parser of each type for file fields and for flags.

use super::PlanOption;
use crate::generate::plan::AxisPartMapping;
use crate::generate::plan::core_placement::EXAMPLE as TILES;
use crate::generate::plan::{
    AblationEffect, AdapterSums, AttentionKernel, BackwardPrefetch, BranchOrder, BucketPolicy,
    ContextExchange, CorePlacement, ElementwiseKernels, ExpertCapacityFactor, ExpertExchangeForm,
    ExpertProducts, ExpertRoutingBalance, LossKernel, OffloadGather, OffloadedState,
    OperatorNamePattern, Optimizer, ParallelAxis, RecomputePolicy, RecomputedModule, ResidencyRule,
    ScalingRecipe, ScheduleName, SoftmaxKernel, SplitUnit, TensorNeighbours, ZeroStage,
};
use crate::generate::schedule::StagePassOrders;
use crate::generate::{PatternOptionError, refused_option_value_error};
use chakram_base::config::{ConfigError, ConfigField, quote_and_truncate_for_message};
use chakram_base::setting::SettingKey;
use chakram_base::units::Bytes;
use chakram_trace::format::Dtype;

/// Syntax of the words that follow a flag.
#[derive(Clone, Copy, Debug)]
pub enum OptionValueSyntax {
    /// Unsigned integers of 32 bits.
    Number,
    /// Unsigned integers of 64 bits.
    LongNumber,
    /// One of the words that this function returns.
    Words(fn() -> Vec<&'static str>),
    /// Text for which this function returns `Ok`.
    Text(fn(&str) -> Result<(), String>),
}

/// A type of values that options can have.
pub(super) trait OptionValue: Sized {
    /// Syntax of each word of the flag.
    const SYNTAX: OptionValueSyntax;
    /// True if the flag takes several words.
    const IS_LIST: bool = false;
    /// Syntax of lists in files, for error messages.
    const LIST: &'static str = "";

    /// Parses the value from a field of a plan file.
    fn parse_field(field: &ConfigField<'_>, option: &PlanOption) -> Result<Self, ConfigError>;

    /// Parses a flag's words: exactly one word, unless the value is a list.
    fn parse(words: &[String]) -> Result<Self, String>;

    /// Rejects values of the right type that `option` does not allow.
    fn check_for_option(&self, _option: &PlanOption) -> Result<(), PatternOptionError> {
        Ok(())
    }
}

/// Parses a single word with its `FromStr`.
fn parse_single_word<T: std::str::FromStr<Err: ToString>>(words: &[String]) -> Result<T, String> {
    let word = words.last().map_or("", String::as_str);
    word.parse().map_err(|error: T::Err| error.to_string())
}

macro_rules! numbers {
    ($($T:ty: $syntax:ident, $most:expr, $list:literal;)*) => {$(
        impl OptionValue for $T {
            const SYNTAX: OptionValueSyntax = OptionValueSyntax::$syntax;
            const LIST: &'static str = $list;

            fn parse_field(field: &ConfigField<'_>, option: &PlanOption) -> Result<Self, ConfigError> {
                Ok(field.read_integer_between(option.least, $most as u64)? as $T)
            }

            fn parse(words: &[String]) -> Result<Self, String> {
                parse_single_word(words)
            }

            fn check_for_option(&self, option: &PlanOption) -> Result<(), PatternOptionError> {
                if u64::from(*self) < option.least {
                    return Err(refused_option_value_error(option.key, self, format!("{} or more", option.least)));
                }
                Ok(())
            }
        }
    )*};
}

numbers! {
    u32: Number, i32::MAX, "a list of ranks";
    u64: LongNumber, i64::MAX, "";
}

/// Implements [`OptionValue`] for types with a fixed set of words. The given expression parses the
/// value of a file's field.
macro_rules! words {
    ($($T:ty: $list:literal, |$field:ident| $read:expr;)*) => {$(
        impl OptionValue for $T {
            const SYNTAX: OptionValueSyntax =
                OptionValueSyntax::Words(|| Self::ALL.iter().map(|(_, word)| *word).collect());
            const LIST: &'static str = $list;

            fn parse_field($field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
                $read
            }

            fn parse(words: &[String]) -> Result<Self, String> {
                let mut all = Self::ALL.iter();
                let found = all.find(|(_, word)| words.last().is_some_and(|last| last == word));
                found.map(|(value, _)| *value).ok_or_else(|| format!("{words:?} is no value"))
            }
        }
    )*};
}

words! {
    // Files give the ZeRO stage as a number.
    ZeroStage: "", |field| Ok(Self::ALL[field.read_integer_between(0, 3)? as usize].0);
    ParallelAxis: "tp, dp and pp in some order, innermost first", |field| field.read_choice(Self::ALL);
    ScheduleName: "", |field| field.read_choice(Self::ALL);
    RecomputePolicy: "", |field| field.read_choice(Self::ALL);
    ResidencyRule: "", |field| field.read_choice(Self::ALL);
    BucketPolicy: "", |field| field.read_choice(Self::ALL);
    Optimizer: "", |field| field.read_choice(Self::ALL);
    OffloadedState: "", |field| field.read_choice(Self::ALL);
    OffloadGather: "", |field| field.read_choice(Self::ALL);
    AttentionKernel: "", |field| field.read_choice(Self::ALL);
    SoftmaxKernel: "", |field| field.read_choice(Self::ALL);
    ElementwiseKernels: "", |field| field.read_choice(Self::ALL);
    LossKernel: "", |field| field.read_choice(Self::ALL);
    BackwardPrefetch: "", |field| field.read_choice(Self::ALL);
    ScalingRecipe: "", |field| field.read_choice(Self::ALL);
    ContextExchange: "", |field| field.read_choice(Self::ALL);
    ExpertProducts: "", |field| field.read_choice(Self::ALL);
    ExpertExchangeForm: "", |field| field.read_choice(Self::ALL);
    AdapterSums: "", |field| field.read_choice(Self::ALL);
    BranchOrder: "", |field| field.read_choice(Self::ALL);
    SplitUnit: "", |field| field.read_choice(Self::ALL);
    TensorNeighbours: "", |field| field.read_choice(Self::ALL);
    AblationEffect: "a list of effects", |field| field.read_choice(Self::ALL);
    RecomputedModule: "a list of modules", |field| field.read_choice(Self::ALL);
    Dtype: "", |field| field.read_choice(&Self::ALL);
}

impl OptionValue for bool {
    const SYNTAX: OptionValueSyntax = OptionValueSyntax::Words(|| vec!["true", "false"]);

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        field.read_flag()
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

impl OptionValue for Bytes {
    const SYNTAX: OptionValueSyntax = OptionValueSyntax::Text(|text| {
        let bytes = text.parse::<Self>();
        bytes.map(drop).map_err(|error| error.to_string())
    });

    fn parse_field(field: &ConfigField<'_>, option: &PlanOption) -> Result<Self, ConfigError> {
        field.read_quantity(option.example)
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

pub(super) enum AxisMappingOrCorePlacement {
    Axis(AxisPartMapping),
    Tiles(CorePlacement),
}

/// Syntax of a [`AxisMappingOrCorePlacement`], for error messages.
const PLACES: &str = "AXIS@DIMENSION or AXIS:MEMBERS@DIMENSION, for example tp@0, dp:2@0 or pp@infiniband; or of tiles \
                      line, s_shape, spiral, or a core x:y for each rank";

impl std::str::FromStr for AxisMappingOrCorePlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = if text.contains('@') {
            text.parse().map(Self::Axis)
        } else {
            text.parse().map(Self::Tiles)
        };
        word.map_err(|_| format!("expected {PLACES}"))
    }
}

impl OptionValue for AxisMappingOrCorePlacement {
    const SYNTAX: OptionValueSyntax =
        OptionValueSyntax::Text(|text| text.parse::<Self>().map(drop));
    const LIST: &'static str = "a list such as [\"tp@0\", \"dp@1\"] or [\"s_shape\"]";

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        let text = field.read_text("a text such as \"tp@0\" or \"s_shape\"")?;
        text.parse::<Self>()
            .map_err(|_| field.invalid_value_error(quote_and_truncate_for_message(text), PLACES))
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

impl OptionValue for CorePlacement {
    const SYNTAX: OptionValueSyntax =
        OptionValueSyntax::Text(|text| text.parse::<Self>().map(drop));

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        let text = field.read_text(TILES)?;
        text.parse::<Self>()
            .map_err(|_| field.invalid_value_error(quote_and_truncate_for_message(text), TILES))
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

impl<T: OptionValue> OptionValue for Vec<T> {
    const SYNTAX: OptionValueSyntax = T::SYNTAX;
    const IS_LIST: bool = true;

    fn parse_field(field: &ConfigField<'_>, option: &PlanOption) -> Result<Self, ConfigError> {
        let items = field.read_array_items(T::LIST)?;
        items
            .iter()
            .map(|item| T::parse_field(item, option))
            .collect()
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        words.chunks(1).map(T::parse).collect()
    }
}

impl OptionValue for [ParallelAxis; 3] {
    const SYNTAX: OptionValueSyntax = ParallelAxis::SYNTAX;
    const IS_LIST: bool = true;

    fn parse_field(field: &ConfigField<'_>, option: &PlanOption) -> Result<Self, ConfigError> {
        let axes = Vec::<ParallelAxis>::parse_field(field, option)?;
        let found = axes.len();
        let axes: Self = axes
            .try_into()
            .map_err(|_| field.invalid_value_error(format!("{found} axes"), ParallelAxis::LIST))?;
        match ParallelAxis::ALL
            .iter()
            .find(|(axis, _)| !axes.contains(axis))
        {
            Some((_, word)) => {
                Err(field.invalid_value_error(format!("no {word}"), ParallelAxis::LIST))
            }
            None => Ok(axes),
        }
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        let found = words.len();
        Vec::<ParallelAxis>::parse(words)?.try_into().map_err(|_| {
            format!(
                "{} has {found} axes; it takes tp, dp and pp in some order",
                SettingKey::Order
            )
        })
    }
}

impl OptionValue for ExpertRoutingBalance {
    const SYNTAX: OptionValueSyntax =
        OptionValueSyntax::Text(|text| text.parse::<Self>().map(drop));

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        let text = field.read_text(Self::FORM)?;
        text.parse().map_err(|_| {
            field.invalid_value_error(quote_and_truncate_for_message(text), Self::FORM)
        })
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

impl OptionValue for OperatorNamePattern {
    const SYNTAX: OptionValueSyntax =
        OptionValueSyntax::Text(|text| text.parse::<Self>().map(drop));
    const LIST: &'static str = "a list such as [\"attention.qkv\", \"mlp.*\"]";

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        let text = field.read_text(Self::FORM)?;
        text.parse().map_err(|_| {
            field.invalid_value_error(quote_and_truncate_for_message(text), Self::FORM)
        })
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

impl OptionValue for ExpertCapacityFactor {
    const SYNTAX: OptionValueSyntax =
        OptionValueSyntax::Text(|text| text.parse::<Self>().map(drop));

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        Ok(Self::from_fraction_rounded_to_thousandths(
            field.read_positive(Self::MOST)?,
        ))
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        parse_single_word(words)
    }
}

/// Plan files list orders as strings; the command line takes a separate file instead.
impl OptionValue for StagePassOrders {
    const SYNTAX: OptionValueSyntax = OptionValueSyntax::Words(Vec::new);

    fn parse_field(field: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        let expected =
            "the steps of each stage, such as [\"0F0,0F1,0B0,0B1\", \"1F0,1B0,1F1,1B1\"]";
        let items = field.read_array_items(expected)?;
        let lines = items.iter().map(|item| item.read_text(expected));
        let lines: Vec<&str> = lines.collect::<Result<_, _>>()?;
        Self::parse_stage_lines(&lines).map_err(|error| {
            // Errors that concern the whole list are reported at its last line, or at the field if the list is empty.
            let place = error
                .line
                .checked_sub(1)
                .and_then(|at| items.get(at))
                .unwrap_or(field);
            let found = match error.cell {
                Some(cell) => format!("{} as step {cell}", error.found),
                None => error.found,
            };
            place.invalid_value_error(found, error.expected)
        })
    }

    fn parse(words: &[String]) -> Result<Self, String> {
        Self::parse_stage_lines(words).map_err(|error| error.to_string())
    }
}

/// Unit value, for tables that occur only in plan files. They are read after all other options.
impl OptionValue for () {
    const SYNTAX: OptionValueSyntax = OptionValueSyntax::Words(Vec::new);

    fn parse_field(_: &ConfigField<'_>, _: &PlanOption) -> Result<Self, ConfigError> {
        Ok(())
    }

    fn parse(_: &[String]) -> Result<Self, String> {
        Ok(())
    }
}
