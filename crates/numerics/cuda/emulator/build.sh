#!/bin/bash
# Builds OUT/libcuda.so.1: the driver's functions and every kernel, for this CPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUT}
mkdir -p "$out"
flags=(-std=gnu++17 -O2 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fPIC
       -fvisibility=hidden -Wno-subobject-linkage -Wno-unknown-pragmas
       -DTARFA_EMULATOR -I"$here/..")

kernel='extern "C" __global__ void( __launch_bounds__\([^)]*\))? +[a-z0-9_]+\('

# A source with an entry for each of its kernels.
compile() {
    local source=$1 name
    name=$(basename "$source" .cu)
    {
        echo "#include \"$source\""
        tr '\n' ' ' <"$source" | grep -oE "$kernel" |
            sed -E 's/.* ([a-z0-9_]+)\($/static emulator::Entry entry_\1("\1", \1);/'
    } >"$out/$name.cpp"
    g++ "${flags[@]}" -c "$out/$name.cpp" -o "$out/$name.o"
}

jobs=()
for source in "$here"/../*.cu; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.05; done
    compile "$source" &
    jobs+=($!)
done
for part in fibers libcuda; do
    g++ "${flags[@]}" -c "$here/$part.cpp" -o "$out/$part.o" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
g++ -shared -o "$out/libcuda.so.1" "$out"/*.o
