"""llama.cpp through the ctypes binding of llama-cpp-python: explicit batches, one sequence."""

import hashlib
import os
import sys
import time

import numpy as np

import shape

LOAD_MMAP = 1


class LlamaPeer:
    """The same four operations as `TarfaPeer`, inside this process."""

    name = "llama.cpp"

    def __init__(self, peers_dir, gguf, threads, context=1024, batch=512):
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", os.path.join(peers_dir, "build", "bin"))
        sys.path.insert(0, os.path.join(peers_dir, "dl", "llama_cpp_python-0.3.36"))
        import llama_cpp

        self._lib = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self._model = self._load(gguf)
        self._batch_max = batch
        self._context = self._open(threads, context, batch)
        self._batch = llama_cpp.llama_batch_init(batch, 0, 1)
        self._position = 0
        self.active_bytes = shape.active_bytes(shape.F32_BYTES)
        self.pid = os.getpid()

    def _load(self, gguf):
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = LOAD_MMAP
        model = self._lib.llama_model_load_from_file(str(gguf).encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        return model

    def _open(self, threads, context, batch):
        params = self._lib.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        opened = self._lib.llama_init_from_model(self._model, params)
        if not opened:
            raise RuntimeError("llama.cpp cannot make a context")
        return opened

    def describe(self):
        """llama.cpp's own list of the instruction sets in use."""
        return self._lib.llama_print_system_info().decode().strip()

    def reset(self):
        """Forgets the sequence."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._position = 0

    def prompt(self, ids):
        """Appends `ids` in batches; the answer is about the last token's logits."""
        return self._timed(ids, self._batch_max)

    def decode(self, ids):
        """Appends `ids` one step at a time."""
        return self._timed(ids, 1)

    def _timed(self, ids, step):
        began = time.perf_counter()
        for start in range(0, len(ids), step):
            self._forward(ids[start : start + step])
        seconds = time.perf_counter() - began
        row = self._lib.llama_get_logits_ith(self._context, -1)
        logits = np.ctypeslib.as_array(row, shape=(shape.VOCAB,)).astype("<f4")
        digest = hashlib.sha256(logits.tobytes()).hexdigest()
        return {"seconds": seconds, "tokens": len(ids), "logits_sha256": digest}

    def _forward(self, ids):
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = self._position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(ids) - 1
        code = self._lib.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode failed with {code}")
        self._lib.llama_synchronize(self._context)
        self._position += len(ids)

    def close(self):
        """Frees the context and the model."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)
