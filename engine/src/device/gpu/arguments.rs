//! The kernels by name, and the twins of their argument structs in `kernels/phasemark.cpp`.
//!
//! Field for field in the same order: `tests/images.rs` compares sizes and offsets with the images. A file of its own,
//! and one that needs nothing else, because the stand-in HIP library of the tests (`engine/hip-stand-in`) includes it:
//! what it runs takes the very structs that the host sends.

/// Rows of a pass through the kernels for few rows.
pub(crate) const MAX_ROWS: usize = 16;
/// bf16 planes of a row's value.
pub(crate) const PLANES: usize = 3;
/// Positions of the cache that a block of attention takes.
pub(crate) const CHUNK: usize = 64;
/// Threads of a block of the matrix kernels for few rows.
pub(crate) const FEW_THREADS: u32 = 256;
/// Outputs of such a block.
pub(crate) const FEW_OUTPUTS: usize = 128;
/// Waves of such a block that share the outputs' inputs.
pub(crate) const FEW_K: usize = 2;
/// Threads of a block of a matrix that is added to the residual stream.
pub(crate) const ADD_THREADS: usize = 512;
/// Outputs of such a block.
pub(crate) const ADD_OUTPUTS: usize = 32;
/// Parts of a row that a block of `embed` takes, of [`ADD_OUTPUTS`] values.
pub(crate) const EMBED_PARTS: usize = 8;
/// Heads of a block of `rotate`.
pub(crate) const ROTATE_HEADS: usize = 4;
/// Queries of a block of attention of few rows, at most, where heads are at most so wide; else half of them.
pub(crate) const QUERIES: usize = 16;
pub(crate) const KEY_DIM: usize = 128;
/// Rows of a block of the dense kernels.
pub(crate) const DENSE_ROWS: usize = 128;
/// Rows of a block of attention of many rows.
pub(crate) const FLASH_ROWS: usize = 128;
/// Width of the widest head that it takes.
pub(crate) const FLASH_DIM: usize = 128;
/// Threads of both.
pub(crate) const WIDE_THREADS: usize = 256;
/// Values of a row that `norm` can hold.
pub(crate) const NORM_WIDTH: usize = 4 * 4 * 1024;

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name {
            $(pub(crate) $field: $kind,)*
        }

        impl $name {
            /// Each field's name, offset and size in bytes.
            pub(crate) fn layout() -> Vec<(&'static str, usize, usize)> {
                vec![$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$kind>()),)*]
            }
        }

        impl Argument for $name {}

        impl Field for $name {
            fn addresses(_: &'static str, at: usize, to: &mut Vec<(&'static str, usize)>) {
                $(<$kind as Field>::addresses(stringify!($field), at + std::mem::offset_of!($name, $field), to);)*
            }
        }
    )*};
}

/// What an argument is made of.
pub(crate) trait Field {
    /// Adds the name and offset of each address in a field of this name at `at`.
    fn addresses(name: &'static str, at: usize, to: &mut Vec<(&'static str, usize)>);
}
impl Field for u64 {
    fn addresses(name: &'static str, at: usize, to: &mut Vec<(&'static str, usize)>) {
        to.push((name, at));
    }
}
impl Field for u32 {
    fn addresses(_: &'static str, _: usize, _: &mut Vec<(&'static str, usize)>) {}
}
impl Field for f32 {
    fn addresses(_: &'static str, _: usize, _: &mut Vec<(&'static str, usize)>) {}
}

/// A kernel's one argument. Pointers are addresses on the device; 0 is null.
pub(crate) trait Argument: Copy {}

arguments! {
    /// How rows come in.
    Embed {
        x: u64, tokens: u64, table: u64, norm: u64, out: u64, squares: u64,
        width: u32, w_planes: u32, square_parts: u32,
    }
    /// The residual stream's sum and RMS norm.
    Norm {
        x: u64, partial: u64, bias: u64, weight: u64, planes: u64,
        hidden: u32, width: u32, partial_width: u32, splits: u32, rows: u32, first: u32, threads: u32, dense: u32,
        epsilon: f32,
    }
    /// A matrix times few rows.
    Few {
        out: u64, planes: u64, weights: u64, bias: u64, squares: u64, ahead: u64, ahead_bytes: u32, ahead_line: u32,
        outputs: u32, width: u32, w_planes: u32, rows: u32, splits: u32, out_width: u32, square_parts: u32, hidden: u32,
        epsilon: f32,
    }
    /// A matrix times few rows, added to the residual stream.
    Add {
        x: u64, out: u64, squares: u64, planes: u64, weights: u64, bias: u64, norm: u64, ahead: u64, ahead_bytes: u32,
        ahead_line: u32, outputs: u32, width: u32, w_planes: u32, rows: u32, x_width: u32,
    }
    /// Sums of queries, keys and values, and what becomes of them.
    Qkv {
        partial: u64, bias: u64, q_norm: u64, k_norm: u64, cosines: u64, sines: u64, start: u64,
        heads: u32, kv_heads: u32, head_dim: u32, splits: u32, rows: u32, partial_width: u32,
        epsilon: f32, scale: f32,
    }
    /// Queries and keys turned to their positions; keys and values appended.
    Rotate { qkv: Qkv, q: u64, keys: u64, values: u64 }
    /// That, and attention of few rows.
    Attend {
        qkv: Qkv, q: u64, keys: u64, values: u64, sums: u64, stats: u64, planes: u64, done: u64, chunks: u32,
        width: u32, together: u32,
    }
    /// A matrix times many rows.
    Dense {
        out: u64, x: u64, weights: u64, bias: u64,
        outputs: u32, width: u32, w_planes: u32, rows: u32, out_width: u32,
    }
    /// Attention of many rows.
    Flash {
        q: u64, keys: u64, values: u64, out: u64,
        start: u32, rows: u32, heads: u32, kv_heads: u32, head_dim: u32, width: u32,
    }
    /// The largest logit.
    Argmax { logits: u64, tokens: u64, tops: u64, ids: u64, vocab: u32, stride: u32, parts: u32 }
    /// How much of what was proposed stands.
    Accept { said: u64, proposed: u64, accepted: u64, count: u32 }
}

macro_rules! kernels {
    ($($kernel:ident = $name:literal takes $argument:ident),* $(,)?) => {
        /// A kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kernel {
            $(#[doc = concat!("`", $name, "`")] $kernel,)*
        }

        impl Kernel {
            /// All of them.
            pub(crate) const ALL: &[Kernel] = &[$(Kernel::$kernel),*];

            /// Its name in the images.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Kernel::$kernel => $name,)* }
            }

            /// The bytes of its argument.
            pub(crate) fn argument_size(self) -> usize {
                match self { $(Kernel::$kernel => size_of::<$argument>(),)* }
            }

            /// Name and offset of each address in its argument.
            pub(crate) fn addresses(self) -> Vec<(&'static str, usize)> {
                let mut addresses = Vec::new();
                match self { $(Kernel::$kernel => $argument::addresses("", 0, &mut addresses),)* }
                addresses
            }
        }
    };
}

kernels! {
    Embed = "embed" takes Embed,
    Norm = "norm" takes Norm,
    Few8 = "few_8" takes Few,
    Few16 = "few_16" takes Few,
    Gated8 = "gated_8" takes Few,
    Gated16 = "gated_16" takes Few,
    Add8 = "add_8" takes Add,
    Add16 = "add_16" takes Add,
    Rotate = "rotate" takes Rotate,
    Attend = "attend" takes Attend,
    DenseRows = "dense_rows" takes Dense,
    DenseGated = "dense_gated" takes Dense,
    Flash32 = "flash_32" takes Flash,
    Flash64 = "flash_64" takes Flash,
    Flash128 = "flash_128" takes Flash,
    Argmax = "argmax" takes Argmax,
    Choose = "choose" takes Argmax,
    Accept = "accept" takes Accept,
}
