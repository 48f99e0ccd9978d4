//! What tidy enforces, as data: change a rule here, and STYLE or ARCHITECTURE with it.

/// Lines of a source file: an error above `FILE_LINES_MAX`, a warning above `FILE_LINES_WARN`.
pub const FILE_LINES_MAX: usize = 600;
pub const FILE_LINES_WARN: usize = 450;
/// Lines of a function, from its first keyword to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Characters of a Rust, C, CUDA or shell line.
pub const LINE_COLUMNS_MAX: usize = 100;
/// Lines of `model/forward.rs`: the forward pass reads like the paper, or it is elsewhere.
pub const FORWARD_LINES_MAX: usize = 150;

/// Names that say nothing, for a file, a folder or a module.
pub const FORBIDDEN_NAMES: &[&str] =
    &["util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff"];

/// Where unsafe code may live: path prefixes.
pub const UNSAFE_HOMES: &[&str] =
    &["crates/store/src/io.rs", "crates/store/src/io/", "crates/numerics/"];
/// Roots that must carry `#![forbid(unsafe_code)]` as soon as they exist.
pub const FORBID_UNSAFE_ROOTS: &[&str] = &[
    "crates/engine/src/lib.rs",
    "crates/lab/src/lib.rs",
    "crates/server/src/lib.rs",
    "crates/cli/src/main.rs",
];

/// A crate folder and what its manifest may name: the fences of the workspace.
pub struct Fence {
    pub folder: &'static str,
    pub package: &'static str,
    pub may_know: &'static [&'static str],
    pub may_use_anyhow: bool,
}

/// Lowest first; ARCHITECTURE.md has the same table, and tidy compares them.
pub const FENCES: &[Fence] = &[
    Fence { folder: "crates/store", package: "store", may_know: &[], may_use_anyhow: false },
    Fence { folder: "crates/numerics", package: "numerics", may_know: &[], may_use_anyhow: false },
    Fence {
        folder: "crates/engine",
        package: "engine",
        may_know: &["store", "numerics"],
        may_use_anyhow: false,
    },
    Fence {
        folder: "crates/lab",
        package: "lab",
        may_know: &["engine", "store", "numerics"],
        may_use_anyhow: true,
    },
    Fence {
        folder: "crates/server",
        package: "server",
        may_know: &["engine", "lab"],
        may_use_anyhow: false,
    },
    Fence {
        folder: "crates/cli",
        package: "tarfa",
        may_know: &["store", "numerics", "engine", "lab", "server"],
        may_use_anyhow: true,
    },
    Fence {
        folder: "xtask",
        package: "xtask",
        may_know: &["store", "numerics", "engine", "lab", "server"],
        may_use_anyhow: true,
    },
];

/// `cpu/` and `cuda/` files that carry no operation of their own: stem, and what it is instead.
pub const NUMERICS_INFRASTRUCTURE: &[(&str, &str)] = &[
    ("mod", "module root: levels and detection"),
    ("lanes", "portable vector of f32 lanes"),
    ("lanes_avx2", "the same lanes on AVX2"),
    ("lanes_avx512", "the same lanes on AVX-512"),
    ("threads", "the worker pool"),
    ("error", "what can go wrong with a GPU"),
    ("experts", "a token's experts: projections by another name"),
    ("kernels", "the PTX and how it is launched"),
    ("matrix", "projections in device memory"),
    ("memory", "device memory and copies"),
    ("probe", "ceilings of a GPU"),
    ("product", "projections of many tokens: op/linear.rs"),
    ("recording", "launches that are queued again"),
    ("router", "the choice of experts, which the engine makes on a CPU"),
    ("streams", "copies beside the computing"),
];

/// Variants that carry prose instead of facts: the first nowhere, the others in no error.
pub const PROSE_VARIANTS: &[&str] =
    &["Msg", "Message", "Other", "Generic", "Custom", "Text", "Misc"];

/// Comparing within a tolerance is the business of one place.
pub const TOLERANCE_HOME: &str = "crates/lab/src/golden";
pub const TOLERANCE_NAMES: &[&str] = &[
    "abs_diff_eq",
    "allclose",
    "approx_eq",
    "assert_abs_diff_eq",
    "assert_approx_eq",
    "assert_close",
    "assert_relative_eq",
    "is_close",
    "isclose",
    "relative_eq",
];
pub const TOLERANCE_CRATES: &[&str] = &["approx", "assert_float_eq", "float-cmp", "float_eq"];

/// Compiler flags and intrinsics that change the arithmetic.
pub const FAST_MATH: &[&str] = &[
    "-Ofast",
    "denormal-fp-math",
    "enable-unsafe-fp-math",
    "fadd_fast",
    "fast-math",
    "fast_math",
    "fmul_fast",
    "fp-contract=fast",
    "ftz=true",
    "unsafe-math",
];

/// Notes to oneself belong in an issue. Written in halves, so that this file passes.
pub const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Folders of one particular machine. Written in halves, so that this file passes.
pub const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/ho", "me"), concat!("/t", "mp")];
