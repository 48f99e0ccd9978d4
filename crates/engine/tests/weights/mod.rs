//! Weights in place and in stores, for tests of where they come from.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::model::{Model, Source};
use engine::tiers::Placement;
use engine::tiers::heat::Heat;
use numerics::Cpu;
use store::checkpoint::{Checkpoint, Keep, Part};
use store::convert::{RealDisk, Request, convert};
use store::experts::{BlockId, Digests, ExpertMap, Provenance};
use store::jnf::Store;

/// A folder of the repository's models.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

/// Where weights come from.
pub struct Weights {
    pub checkpoint: Checkpoint,
    pub map: ExpertMap,
    /// What a store knows of itself.
    pub known: Vec<(BlockId, u128, Provenance)>,
}

impl Weights {
    pub fn in_place(name: &str) -> Weights {
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        let map = Model::experts_in_place(&checkpoint).unwrap().1;
        Weights { checkpoint, map, known: Vec::new() }
    }

    pub fn store(&self, pack: bool, out: &Path) -> Weights {
        let request = Request {
            checkpoint: &self.checkpoint,
            experts: &self.map,
            out: out.to_path_buf(),
            layers: None,
            pack,
            tool: "a test".into(),
            threads: 2,
        };
        convert(&request, &RealDisk, &mut |_| ControlFlow::Continue(())).unwrap();
        let store = Store::open(out).unwrap();
        store.check_dense().unwrap();
        let (mut checkpoint, map, digests) = store.into_parts();
        let keep = |part| match part {
            Part::Experts => Keep::Mapped,
            Part::Attention | Part::DeltaNet | Part::SharedExpert if pack => Keep::Packed,
            _ => Keep::Owned,
        };
        checkpoint.own(keep).unwrap();
        let matrices = checkpoint.tensors().filter(|(_, tensor)| tensor.packed).count();
        assert!(pack || matrices == 0, "only what was asked for is packed");
        Weights { checkpoint, map, known: digests.entries() }
    }

    pub fn open(&self, cpu: Cpu, placement: Placement, heat: Option<Heat>) -> Model {
        let digests = Arc::new(Digests::new(self.known.iter().copied()));
        let (checkpoint, experts) = (&self.checkpoint, Some(self.map.clone()));
        let source = Source { checkpoint, experts, digests, placement, heat };
        Model::open(source, cpu).expect("the model opens")
    }
}
