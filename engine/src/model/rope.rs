//! Rotary position embedding: which angle each pair of a head's values turns by.

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
    /// `head_dim / 2` angles in radians per position, computed in `f32` as the models' own code does.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        todo!("{head_dim}")
    }
}
