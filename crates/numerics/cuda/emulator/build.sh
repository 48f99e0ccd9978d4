#!/bin/bash
# Builds OUT/libcuda.so.1: the driver's functions and every kernel, for this CPU. What has not
# changed since the last build into OUT is kept. With --check, also builds and runs the test of
# the emulator itself.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage='usage: build.sh [--check] OUT'
check=
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
out=${1:?$usage}
objects=$out/objects
mkdir -p "$objects"
objects=$(cd "$objects" && pwd)
flags=(-std=gnu++17 -O2 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fPIC
       -fvisibility=hidden -Wall -Wno-unused -Wno-subobject-linkage -Wno-unknown-pragmas
       -DTARFA_EMULATOR -I"$here/..")

kernel='extern "C" __global__ void( __launch_bounds__\([^)]*\))? +[a-z0-9_]+\('

# A source with an entry for each of its kernels.
wrap() {
    echo "#include \"$1\""
    tr '\n' ' ' <"$1" | tr -s ' ' | grep -oE "$kernel" |
        sed -E 's/.* ([a-z0-9_]+)\($/static emulator::Entry entry_\1("\1", \1);/'
}

# Headers are few: any that changed is taken to matter. By content: times say nothing between two
# checkouts that build into one place.
headers=$(cat "$here"/../*.cuh "$here"/*.h "$here/build.sh" | sha256sum)

# Compiles unless the object was made of the same.
compile() {
    local source=$1 object made_of
    object=$objects/$(basename "$source").o
    made_of="$source $headers $(sha256sum <"$source") $(g++ --version | head -n 1)"
    if [ -f "$object" ] && [ "$(cat "$object.from" 2>&1)" = "$made_of" ]; then return; fi
    rm -f "$object.from"
    if [[ $source == *.cu ]]; then
        source=$objects/$(basename "$source").cpp
        wrap "$1" >"$source"
    fi
    g++ "${flags[@]}" -c "$source" -o "$object" || {
        echo "build.sh: $1 does not compile" >&2
        return 1
    }
    echo "$made_of" >"$object.from"
}

kernels=("$here"/../*.cu)
parts=("$here"/fibers.cpp "$here"/memory.cpp "$here"/libcuda.cpp)
tests=(${check:+"$here"/check.cpp})
running=()
for source in "${kernels[@]}" "${parts[@]}" "${tests[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.05; done
    compile "$source" &
    running+=($!)
done
failed=
for job in "${running[@]}"; do wait "$job" || failed=yes; done
if [ -n "$failed" ]; then exit 1; fi

object_of() {
    local source
    for source; do echo "$objects/$(basename "$source").o"; done
}
mapfile -t driver < <(object_of "${parts[@]}")
mapfile -t all < <(object_of "${kernels[@]}")
# The program may have opened the library that is there: a new file takes its place.
g++ -shared -Wl,-z,defs -o "$objects/libcuda.new" "${driver[@]}" "${all[@]}"
mv "$objects/libcuda.new" "$out/libcuda.so.1"
# The program asks for this name first, and a real driver may have it elsewhere.
ln -sf libcuda.so.1 "$out/libcuda.so"

if [ -n "$check" ]; then
    g++ -o "$out/check" "${driver[@]}" "$objects/check.cpp.o"
    "$out/check"
fi
