#!/usr/bin/env bash
# Fills PEERS_DIR with llama.cpp built for this machine, the bandwidth probe and the checkpoint.
# Needs python3 with venv, a C and C++ compiler, 17 GB of disk and network for pip.
set -euo pipefail

: "${PEERS_DIR:?set PEERS_DIR to an empty folder}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=0.3.36
jobs=${JOBS:-$(nproc)}
source_dir=$PEERS_DIR/dl/llama_cpp_python-$version

mkdir -p "$PEERS_DIR/dl"
[ -d "$PEERS_DIR/venv" ] || python3 -m venv "$PEERS_DIR/venv"
PATH=$PEERS_DIR/venv/bin:$PATH
pip install --quiet cmake ninja scikit-build-core numpy gguf typing_extensions diskcache jinja2

if [ ! -d "$source_dir" ]; then
  pip download --no-deps --no-build-isolation --no-binary :all: \
    "llama-cpp-python==$version" --dest "$PEERS_DIR/dl"
  tar -xzf "$PEERS_DIR/dl/llama_cpp_python-$version.tar.gz" -C "$PEERS_DIR/dl"
fi

cmake -G Ninja -S "$source_dir/vendor/llama.cpp" -B "$PEERS_DIR/build" \
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
  -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF
ninja -C "$PEERS_DIR/build" -j "$jobs" llama

${CC:-cc} -O3 -march=native -shared -fPIC -pthread "$here/bandwidth.c" \
  -o "$PEERS_DIR/libbandwidth.so"

[ -f "$PEERS_DIR/model/hf/model.safetensors.index.json" ] ||
  python "$here/mkmodel.py" "$PEERS_DIR/model"
