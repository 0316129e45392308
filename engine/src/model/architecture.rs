//! What tells the known families of models apart. They share one forward pass; all that is particular to one of them
//! stands in its row of [`Architecture::traits`], so that a new one is a variant and a row here.

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`
    Llama,
    /// `MistralForCausalLM`
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: a norm on each head's query and key.
    Qwen3,
}

/// What is particular to a family.
pub(super) struct Traits {
    /// In `config.json`.
    pub(super) hugging_face: &'static str,
    /// In a GGUF file, unless it is stored there as another one.
    pub(super) gguf: Option<&'static str>,
    /// What the models' own code assumes where `config.json` is silent (transformers 5's configuration classes).
    pub(super) silent: Silent,
    /// Whether attention reaches back over a window only, where the configuration has one.
    pub(super) slides: Slides,
    /// Whether queries and keys are normalised per head.
    pub(super) qk_norm: bool,
    /// Whether q, k and v have biases whatever the configuration says.
    pub(super) qkv_bias: bool,
    /// Switches for biases that the models' own code does not know: they count only where the files hold such biases.
    pub(super) doubted: Doubted,
    /// Whether a GGUF file stores the rows of each query and key head so that the two values that a rotary position
    /// turns together lie side by side.
    pub(super) interleaved: bool,
}

/// What is assumed where a configuration is silent.
pub(super) struct Silent {
    pub(super) context: usize,
    /// `None`: the width over the heads.
    pub(super) head_dim: Option<usize>,
    pub(super) window: Option<usize>,
}

/// When a window counts.
pub(super) enum Slides {
    Never,
    Always,
    /// Where `use_sliding_window` says so.
    IfAsked,
}

/// Switches that are believed only where the files hold such biases.
pub(super) struct Doubted {
    pub(super) qkv: bool,
    pub(super) o: bool,
    pub(super) mlp: bool,
}

impl Architecture {
    /// Every one of them.
    pub(super) const ALL: [Architecture; 4] =
        [Architecture::Llama, Architecture::Mistral, Architecture::Qwen2, Architecture::Qwen3];

    pub(super) const fn traits(self) -> Traits {
        match self {
            Architecture::Llama => Traits {
                hugging_face: "LlamaForCausalLM",
                gguf: Some("llama"),
                silent: Silent { context: 2048, head_dim: None, window: None },
                slides: Slides::Never,
                qk_norm: false,
                qkv_bias: false,
                doubted: Doubted { qkv: false, o: false, mlp: false },
                interleaved: true,
            },
            Architecture::Mistral => Traits {
                hugging_face: "MistralForCausalLM",
                // Converted as `llama`.
                gguf: None,
                silent: Silent { context: 131_072, head_dim: None, window: Some(4096) },
                slides: Slides::Always,
                qk_norm: false,
                qkv_bias: false,
                doubted: Doubted { qkv: true, o: true, mlp: true },
                interleaved: true,
            },
            Architecture::Qwen2 => Traits {
                hugging_face: "Qwen2ForCausalLM",
                gguf: Some("qwen2"),
                silent: Silent { context: 32_768, head_dim: None, window: Some(4096) },
                slides: Slides::IfAsked,
                qk_norm: false,
                qkv_bias: true,
                doubted: Doubted { qkv: false, o: true, mlp: true },
                interleaved: false,
            },
            Architecture::Qwen3 => Traits {
                hugging_face: "Qwen3ForCausalLM",
                gguf: Some("qwen3"),
                silent: Silent { context: 32_768, head_dim: Some(128), window: Some(4096) },
                slides: Slides::IfAsked,
                qk_norm: true,
                qkv_bias: false,
                doubted: Doubted { qkv: false, o: false, mlp: true },
                interleaved: false,
            },
        }
    }
}
