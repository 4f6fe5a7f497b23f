//! Uses random bytes as a model file. The file is rejected with an error, or gives a model whose
//! parts add up to the whole.

use chakram::model::ModelWithDefinitionProperties;
use std::collections::BTreeSet;

/// Runs the target on `data`.
pub fn check_model_file_bytes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for tokens in [None, Some(3)] {
        let found = match ModelWithDefinitionProperties::parse(text, "fuzz.toml", tokens) {
            Ok(found) => found,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("fuzz.toml"), "{error}");
                continue;
            }
        };
        let model = found.model;
        assert!(tokens.is_none_or(|tokens| tokens == model.sequence));
        let names: BTreeSet<_> = model.layers.iter().map(|layer| &layer.name).collect();
        assert_eq!(names.len(), model.layers.len());
        let (mut parameters, mut multiplications) = (0, 0);
        for layer in &model.layers {
            let names: BTreeSet<_> = layer.operators.iter().map(|o| &o.name).collect();
            assert_eq!(names.len(), layer.operators.len());
            assert!(!names.is_empty() && layer.output_elements() > 0);
            parameters += layer.parameter_count();
            multiplications += layer.multiplication_count();
        }
        assert_eq!(model.parameter_count(), parameters);
        assert_eq!(model.multiplication_count(), multiplications);
        assert!(model.causally_skipped_multiplications() <= multiplications);
        assert!(model.saved_bytes_per_sample(2, true) < u64::MAX);
    }
}
