//! Formats energies in human-readable form.

/// Formats an energy in joules with the largest unit in which the number is at least 1, such as `12.300 uJ`.
pub fn format_joules(energy: f64) -> String {
    let units = [
        (1e6, "MJ"),
        (1e3, "kJ"),
        (1.0, "J"),
        (1e-3, "mJ"),
        (1e-6, "uJ"),
        (1e-9, "nJ"),
    ];
    let unit = units.iter().find(|(size, _)| energy.abs() >= *size);
    let (size, name) = unit.unwrap_or(match energy == 0.0 {
        true => &(1.0, "J"),
        false => &(1e-12, "pJ"),
    });
    format!("{:.3} {name}", energy / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_has_the_largest_unit_of_which_there_is_one() {
        assert_eq!(format_joules(0.0), "0.000 J");
        assert_eq!(format_joules(5.510_4e-5), "55.104 uJ");
        assert_eq!(format_joules(2e-12), "2.000 pJ");
        assert_eq!(format_joules(4400.0), "4.400 kJ");
        assert_eq!(format_joules(3e7), "30.000 MJ");
    }
}
