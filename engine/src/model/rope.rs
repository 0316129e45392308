//! Rotary position embedding: which angle each pair of a head's values turns by.

use std::f32::consts::PI;

use super::ModelError;
use super::error::short;
use super::json::Fields;

/// How the model's rotary frequencies were stretched after training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    Default,
    /// Every frequency divided by one factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3's: low frequencies divided, high ones kept, a smooth step between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f32,
        /// Wavelengths longer than `original_context / low` are divided.
        low_freq_factor: f32,
        /// Wavelengths shorter than `original_context / high` are kept.
        high_freq_factor: f32,
        /// Positions of the training before the stretch.
        original_context: f32,
    },
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The base of the geometric series of frequencies.
    pub theta: f32,
    /// How it was stretched.
    pub scaling: Scaling,
}

impl Rope {
    /// `head_dim / 2` angles in radians per position, computed in `f32` as the models' own code does
    /// (`modeling_rope_utils.py` of transformers: the same operations in the same order, where a number
    /// divided by a tensor is the tensor's reciprocal times the number).
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / head_dim as f32;
                // Rounded once from `f64`, so that the platform's `powf` does not matter.
                let power = (self.theta as f64).powf(exponent as f64) as f32;
                self.scaling.stretch(1.0 / power)
            })
            .collect()
    }

    /// From `rope_parameters`, or from the older `rope_scaling`, with `rope_theta` in either or beside them.
    pub(super) fn read(config: &Fields) -> Result<Self, ModelError> {
        let settings = match config.object("rope_scaling")? {
            None => config.object("rope_parameters")?,
            older => older,
        };
        let inner_theta = settings.as_ref().map_or(Ok(None), |settings| settings.positive("rope_theta"))?;
        let outer_theta = config.positive("rope_theta")?;
        let scaling = settings.as_ref().map_or(Ok(Scaling::Default), Scaling::read)?;
        for fields in settings.iter().chain([config]) {
            let name = "partial_rotary_factor";
            if fields.positive(name)?.is_some_and(|factor| factor.to_bits() != 1f32.to_bits()) {
                return Err(fields.unsupported(name, fields.found(name), "rotary embedding of whole heads"));
            }
        }
        Ok(Rope { theta: inner_theta.or(outer_theta).unwrap_or(10_000.0), scaling })
    }
}

impl Scaling {
    fn read(settings: &Fields) -> Result<Self, ModelError> {
        // Settings per kind of layer: none of the architectures here has them.
        if let Some((name, _)) = settings.values().find(|(_, value)| value.is_object()) {
            return Err(settings.unsupported(&short(name), "an object".to_owned(), "one rotary embedding"));
        }
        let key = if settings.value("rope_type").is_some() { "rope_type" } else { "type" };
        let kind = settings.text(key)?;
        let need = |name| settings.need(name, settings.positive(name)?);
        match kind.as_deref().unwrap_or("default") {
            "default" => Ok(Scaling::Default),
            "linear" => Ok(Scaling::Linear { factor: need("factor")? }),
            "llama3" => {
                let low_freq_factor = need("low_freq_factor")?;
                let high_freq_factor = need("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    let expected = format!("above low_freq_factor, which is {low_freq_factor}");
                    return Err(settings.bad("high_freq_factor", expected));
                }
                Ok(Scaling::Llama3 {
                    factor: need("factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_context: need("original_max_position_embeddings")?,
                })
            }
            other => Err(settings.unsupported(key, short(other), "default, linear or llama3")),
        }
    }

    fn stretch(self, frequency: f32) -> f32 {
        match self {
            Scaling::Default => frequency,
            Scaling::Linear { factor } => frequency / factor,
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let wavelength = frequency.recip() * (2.0 * PI);
                if wavelength > original_context / low_freq_factor {
                    frequency / factor
                } else if wavelength < original_context / high_freq_factor {
                    frequency
                } else {
                    let smooth = (wavelength.recip() * original_context - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(theta: f32, scaling: Scaling) -> Rope {
        Rope { theta, scaling }
    }

    #[test]
    fn unscaled_frequencies_are_a_geometric_series() {
        // 10000^(-2i/8): 1, 10^-1, 10^-2, 10^-3, each rounded as a reciprocal of an `f32`.
        let frequencies = rope(10_000.0, Scaling::Default).frequencies(8);
        assert_eq!(frequencies, [1.0, 0.1, 1.0 / 100.0, 1.0 / 1000.0]);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let frequencies = rope(10_000.0, Scaling::Linear { factor: 4.0 }).frequencies(4);
        assert_eq!(frequencies, [0.25, 0.0025]);
    }

    #[test]
    fn llama3_scaling_keeps_high_frequencies_divides_low_ones_and_steps_smoothly_between() {
        // Llama 3.2's settings. Expected: the formula in exact arithmetic, rounded to seven digits; the
        // wavelengths of pairs 15 to 17 lie between 8192 / 4 and 8192.
        let scaling = Scaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let plain = rope(500_000.0, Scaling::Default).frequencies(64);
        let scaled = rope(500_000.0, scaling).frequencies(64);
        assert_eq!(scaled[..15], plain[..15]);
        let between = [1.290_548e-3, 4.295_568e-4, 9.708_288e-5];
        for (found, expected) in scaled[15..18].iter().zip(between) {
            assert!((found / expected - 1.0f32).abs() < 1e-6, "{found} is not {expected}");
        }
        let divided: Vec<f32> = plain[18..].iter().map(|frequency| frequency / 32.0).collect();
        assert_eq!(scaled[18..], divided);
    }
}
