//! Attention on a GPU: op/attention.rs says what it is.

use half::bf16;

use super::kernels::{Address, Grid, args};
use super::{Buffer, Gpu, GpuError, Site, Wide};

/// The keys and values of one layer, `[kv_heads, capacity, head_dim]` each.
pub struct DeviceKeyValues {
    heads: usize,
    head_dim: usize,
    positions: usize,
    capacity: usize,
    keys: Buffer<bf16>,
    values: Buffer<bf16>,
}

/// Room for positions grows in steps of at least this.
const CAPACITY_STEP: usize = REACH;
/// Bytes of scores that are there at a time: more tokens take turns.
const SCORES_BYTES_MAX: usize = 64 << 20;
/// Positions of a block of scores.
const SCORE_BLOCK: usize = 64;
/// Tokens, positions or channels of a tile; tokens from which on tiles pay.
const TILE: usize = 64;
const TILE_LEAST_TOKENS: usize = 16;
/// Positions by whose multiples launches grow.
pub const REACH: usize = 256;

/// A chunk of queries.
pub struct Queries<'a> {
    /// `[tokens, heads, head_dim]`.
    pub q: &'a Buffer<bf16>,
    /// The output gate, likewise.
    pub gate: Option<&'a Buffer<bf16>>,
    pub heads: usize,
    /// `[1]`: of the first token.
    pub position: &'a Buffer<u32>,
    pub scale: f32,
    pub site: Site,
}

impl DeviceKeyValues {
    /// No positions yet.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(gpu: &Gpu, heads: usize, head_dim: usize) -> Result<DeviceKeyValues, GpuError> {
        let (keys, values) = (gpu.room(0)?, gpu.room(0)?);
        Ok(DeviceKeyValues { heads, head_dim, positions: 0, capacity: 0, keys, values })
    }

    /// Tokens seen.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// A copy.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn duplicate(&self, gpu: &Gpu) -> Result<DeviceKeyValues, GpuError> {
        let (keys, values) = (gpu.duplicate(&self.keys)?, gpu.duplicate(&self.values)?);
        Ok(DeviceKeyValues { keys, values, ..*self })
    }

    /// Appends tokens. Shapes: k and v `[tokens, heads, head_dim]`; `position` `[1]`, where the
    /// first of them goes, which is [`positions`](Self::positions).
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn append(
        &mut self,
        gpu: &Gpu,
        k: &Buffer<bf16>,
        v: &Buffer<bf16>,
        position: &Buffer<u32>,
    ) -> Result<(), GpuError> {
        let tokens = k.len() / (self.heads * self.head_dim);
        assert_eq!(k.len(), v.len(), "keys and values");
        self.reserve(gpu, self.positions + tokens)?;
        let (heads, dim) = (self.heads, self.head_dim);
        let capacity = self.capacity;
        let grid = Grid::threads(k.len());
        let args = args![k, v, heads, dim, tokens, position, capacity, &self.keys, &self.values];
        // SAFETY: `reserve` made room up to the last position.
        unsafe { gpu.launch("append_keys", grid, args)? };
        self.positions += tokens;
        Ok(())
    }

    /// A token that somebody queued again was appended.
    pub fn appended(&mut self) {
        self.positions += 1;
        assert!(self.positions <= self.capacity, "there was room for it");
    }

    /// Room for positions without growing.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for so many positions.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn reserve(&mut self, gpu: &Gpu, positions: usize) -> Result<(), GpuError> {
        if positions <= self.capacity {
            return Ok(());
        }
        let capacity = positions.max(self.capacity * 3 / 2).next_multiple_of(CAPACITY_STEP);
        for rows in [&mut self.keys, &mut self.values] {
            let grown = gpu.room(self.heads * capacity * self.head_dim)?;
            for head in 0..self.heads {
                let from = head * self.capacity * self.head_dim;
                let range = from..from + self.positions * self.head_dim;
                gpu.copy(rows, range, &grown, head * capacity * self.head_dim)?;
            }
            *rows = grown;
        }
        self.capacity = capacity;
        Ok(())
    }

    /// All keys and all values, `[positions, heads, head_dim]` each.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn export(&self, gpu: &Gpu) -> Result<(Vec<bf16>, Vec<bf16>), GpuError> {
        let gather = |rows: &Buffer<bf16>| {
            let rows = gpu.download(rows)?;
            let at = |p: usize, h: usize| (h * self.capacity + p) * self.head_dim;
            let heads = (0..self.positions).flat_map(|p| (0..self.heads).map(move |h| (p, h)));
            Ok(heads.flat_map(|(p, h)| &rows[at(p, h)..][..self.head_dim]).copied().collect())
        };
        Ok((gather(&self.keys)?, gather(&self.values)?))
    }

    /// Attends for the last tokens, which are in the cache by now, the first at `position`.
    ///
    /// Shapes: as the queries, `position` `[1]`. What is queued holds for any position up to the
    /// next multiple of [`REACH`].
    ///
    /// # Errors
    /// Not enough memory; a device that was lost.
    pub fn attend(&self, gpu: &Gpu, queries: &Queries<'_>) -> Result<Buffer<bf16>, GpuError> {
        let width = queries.heads * self.head_dim;
        let tokens = queries.q.len() / width;
        let out = gpu.room(queries.q.len())?;
        let stride = self.positions.next_multiple_of(REACH);
        let together = SCORES_BYTES_MAX / (queries.heads * stride * 4);
        let together = together.clamp(1, tokens.max(1));
        let scores = gpu.room(together * queries.heads * stride)?;
        for first in (0..tokens).step_by(together) {
            let count = together.min(tokens - first);
            let part = Part { first, count, stride };
            self.attend_part(gpu, queries, part, &scores, &out)?;
        }
        Ok(out)
    }

    fn attend_part(
        &self,
        gpu: &Gpu,
        queries: &Queries<'_>,
        part: Part,
        scores: &Buffer<f32>,
        out: &Buffer<bf16>,
    ) -> Result<(), GpuError> {
        let (heads, kv, dim) = (queries.heads, self.heads, self.head_dim);
        let Part { first, count, stride } = part;
        let position = queries.position;
        let capacity = self.capacity;
        let at = |buffer: &Buffer<bf16>| Address::of(buffer, first * heads * dim);
        let (q, out, gate) = (at(queries.q), at(out), queries.gate.map_or(Address(0), at));
        let (failure, site, scale) = (gpu.failure(), queries.site, queries.scale);
        let in_tiles = self.is_in_tiles(gpu, queries.q.len() / (heads * dim));
        let tiles = count.div_ceil(TILE);
        if in_tiles {
            let of_q = gpu.room::<u32>(2 * count * heads)?;
            let of_keys = gpu.room::<u32>(2 * kv * capacity)?;
            row_notes(gpu, q, (count * heads, 1), (count * heads, dim), &of_q)?;
            let keys = Address::of(&self.keys, 0);
            row_notes(gpu, keys, (self.positions, kv), (capacity, dim), &of_keys)?;
            let grid =
                Grid { blocks: (stride.div_ceil(TILE), heads, tiles), block: 128, shared_bytes: 0 };
            let args = args![
                q, &self.keys, &of_q, &of_keys, heads, kv, dim, capacity, count, position, first,
                scale, scores, stride, failure, site
            ];
            // SAFETY: the scores of `count` tokens fit, and the cache holds all positions up to the
            // last token.
            unsafe { gpu.launch("tile_scores", grid, args)? };
        } else {
            let blocks = (stride.div_ceil(SCORE_BLOCK), heads, count);
            let grid = Grid { blocks, block: 256, shared_bytes: 0 };
            let args = args![
                q, &self.keys, heads, kv, dim, capacity, count, position, first, scale, scores,
                stride, failure, site
            ];
            // SAFETY: as above.
            unsafe { gpu.launch("attention_scores", grid, args)? };
        }
        let grid = Grid { blocks: (heads, count, 1), block: 256, shared_bytes: 0 };
        let args = args![scores, heads, count, position, first, stride, failure, site];
        // SAFETY: as before.
        unsafe { gpu.launch("attention_soften", grid, args)? };
        let (name, blocks, block) = match in_tiles {
            true => ("tile_mix", (dim.div_ceil(TILE), heads, tiles), 128),
            false => ("attention_mix", (dim.div_ceil(32), heads, count), 256),
        };
        let grid = Grid { blocks, block, shared_bytes: 0 };
        let args = args![
            scores,
            &self.values,
            heads,
            kv,
            dim,
            capacity,
            count,
            position,
            first,
            stride,
            gate,
            out,
            failure,
            site
        ];
        // SAFETY: as before; the output of these tokens is as large as their queries.
        unsafe { gpu.launch(name, grid, args) }
    }

    /// Whether products of so many tokens are taken in tiles.
    fn is_in_tiles(&self, gpu: &Gpu, tokens: usize) -> bool {
        let cores = gpu.kernels.has_tensor_cores() && gpu.wide() == Wide::F64;
        cores && tokens >= TILE_LEAST_TOKENS && self.head_dim.is_multiple_of(8)
    }
}

/// Queues `row_notes` of `rows` of each group; shapes: `(rows, groups)`, `(group_stride, dim)`.
fn row_notes(
    gpu: &Gpu,
    values: Address,
    (rows, groups): (usize, usize),
    (group_stride, dim): (usize, usize),
    out: &Buffer<u32>,
) -> Result<(), GpuError> {
    let grid = Grid { blocks: (rows.div_ceil(8), groups, 1), block: 256, shared_bytes: 0 };
    let args = args![values, rows, group_stride, dim, out];
    // SAFETY: the callers' shapes, and two words for each row.
    unsafe { gpu.launch("row_notes", grid, args) }
}

/// Tokens of a chunk that are attended for together.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    count: usize,
    /// Scores of a head.
    stride: usize,
}
