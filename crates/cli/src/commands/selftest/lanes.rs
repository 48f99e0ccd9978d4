//! Ways to compute, of which none may change a bit.

use anyhow::Result;
use engine::model::{CpuShare, GpuWish, Model, VramWish};
use engine::tiers::policy::Policy;
use numerics::cuda::{Gpu, GpuError, Wide};
use numerics::{Cpu, SimdLevel};
use store::checkpoint::Checkpoint;

use crate::flags;

const LEVELS: [SimdLevel; 3] = [SimdLevel::Scalar, SimdLevel::Avx2, SimdLevel::Avx512];
const THREADS: [usize; 3] = [1, 2, 4];
/// Chunk sizes beside the whole prompt, each at one thread count.
const CHUNKS: [usize; 2] = [1, 64];
const CHUNK_THREADS: usize = 2;
/// The whole prompt in one piece.
const WHOLE: usize = usize::MAX;

/// Where the work is done.
#[derive(Clone, Copy)]
pub enum Device {
    Cpu {
        level: SimdLevel,
        threads: usize,
    },
    /// `cpu`: what the processor takes of the experts that are not there.
    Cuda {
        ordinal: usize,
        wide: Option<Wide>,
        room: Room,
        cpu: CpuShare,
    },
    /// A GPU was not asked for by number, and there is none.
    NoCuda,
}

/// How many experts stay in a GPU's memory.
#[derive(Clone, Copy)]
pub enum Room {
    None,
    /// Those of one token.
    Few,
    Half,
    All,
}

/// A device and how it gets a prompt: one row of the table.
#[derive(Clone, Copy)]
pub struct Lane {
    pub device: Device,
    pub chunk: usize,
}

impl Device {
    /// The first column.
    pub fn name(self) -> String {
        match self {
            Device::Cpu { .. } => "cpu".to_string(),
            Device::Cuda { ordinal, .. } => format!("cuda:{ordinal}"),
            Device::NoCuda => "cuda".to_string(),
        }
    }

    fn how(self) -> String {
        match self {
            Device::Cpu { level, threads } => format!("{:<6}  threads {threads}", level.name()),
            Device::Cuda { wide, room, cpu, .. } => {
                let wide = match wide {
                    Some(Wide::F64) => "f64",
                    Some(Wide::Pair) => "pair",
                    None => "auto",
                };
                let room = match room {
                    Room::None => "no experts",
                    Room::Few => "few experts",
                    Room::Half => "half of them",
                    Room::All => "all of them",
                };
                let cpu = match cpu {
                    CpuShare::Auto => "auto".to_string(),
                    CpuShare::Share(share) => format!("{share}"),
                };
                format!("{wide:<4}  {room:<12}  cpu {cpu:<4}")
            }
            Device::NoCuda => unreachable!("it has no way to compute"),
        }
    }
}

impl Room {
    fn slots(self, model: &Model) -> usize {
        let shape = model.tiers().shape();
        match self {
            Room::None => 0,
            Room::Few => shape.token_working_set(),
            Room::Half => shape.total() / 2,
            Room::All => shape.total(),
        }
    }
}

impl Lane {
    /// The second column.
    pub fn path(&self) -> String {
        if matches!(self.device, Device::NoCuda) {
            return "any".to_string();
        }
        let chunk = match self.chunk {
            WHOLE => "all".to_string(),
            chunk => chunk.to_string(),
        };
        format!("{}  chunk {chunk}", self.device.how())
    }

    /// The model on this device; `None` if this machine has no such device.
    ///
    /// # Errors
    /// The model cannot be loaded though the device is there.
    pub fn open(&self, checkpoint: &Checkpoint) -> Result<Option<Model>> {
        match self.device {
            Device::Cpu { level, .. } if !SimdLevel::available().contains(&level) => Ok(None),
            Device::Cpu { level, threads } => {
                Ok(Some(Model::load(checkpoint, Cpu::new(level, threads)?)?))
            }
            Device::Cuda { ordinal, wide, room, cpu } => {
                let mut model = Model::load(checkpoint, Cpu::detect()?)?;
                let vram = VramWish::Slots(room.slots(&model));
                let wish = GpuWish { vram, policy: Policy::default(), cpu };
                model.move_to(Gpu::open(ordinal, wide)?, &wish)?;
                Ok(Some(model))
            }
            Device::NoCuda => Ok(None),
        }
    }
}

/// Every lane of the devices asked for, or few of each; without a wish of all that are here.
///
/// # Errors
/// A driver that cannot be used.
pub fn lanes(device: Option<flags::Device>, quick: bool) -> Result<Vec<Lane>, GpuError> {
    let mut lanes = Vec::new();
    if matches!(device, None | Some(flags::Device::Cpu)) {
        of_cpu(quick, &mut lanes);
    }
    match device {
        Some(flags::Device::Cpu) => {}
        Some(flags::Device::Cuda(ordinal)) => of_gpu(ordinal, quick, &mut lanes),
        None => match Gpu::driver() {
            Ok((_, count)) => (0..count).for_each(|ordinal| of_gpu(ordinal, quick, &mut lanes)),
            Err(GpuError::NoDriver | GpuError::NoDevice) => {
                lanes.push(Lane { device: Device::NoCuda, chunk: WHOLE });
            }
            Err(other) => return Err(other),
        },
    }
    Ok(lanes)
}

fn of_cpu(quick: bool, lanes: &mut Vec<Lane>) {
    for level in LEVELS {
        let lane = |threads, chunk| Lane { device: Device::Cpu { level, threads }, chunk };
        if quick {
            lanes.push(lane(CHUNK_THREADS, CHUNKS[1]));
            continue;
        }
        lanes.extend(THREADS.map(|threads| lane(threads, WHOLE)));
        lanes.extend(CHUNKS.map(|chunk| lane(CHUNK_THREADS, chunk)));
    }
}

fn of_gpu(ordinal: usize, quick: bool, lanes: &mut Vec<Lane>) {
    let lane = |wide, room, cpu, chunk| {
        let device = Device::Cuda { ordinal, wide, room, cpu };
        Lane { device, chunk }
    };
    if quick {
        lanes.push(lane(None, Room::Few, CpuShare::Auto, CHUNKS[1]));
        lanes.push(lane(None, Room::All, CpuShare::Auto, WHOLE));
        return;
    }
    for wide in [Wide::F64, Wide::Pair].map(Some) {
        let shares = [0.0, 0.5, 1.0].map(CpuShare::Share);
        lanes.extend(shares.map(|share| lane(wide, Room::None, share, WHOLE)));
        let rooms = [Room::None, Room::Few, Room::Half, Room::All];
        lanes.extend(rooms.map(|room| lane(wide, room, CpuShare::Auto, WHOLE)));
    }
    lanes.extend(CHUNKS.map(|chunk| lane(None, Room::All, CpuShare::Auto, chunk)));
    lanes.push(lane(None, Room::Few, CpuShare::Auto, CHUNKS[1]));
}
