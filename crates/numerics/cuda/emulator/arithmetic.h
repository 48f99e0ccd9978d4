// Arithmetic, bits, loads and atomics of a GPU on a CPU. Sums, products, quotients and roots are
// those of IEEE 754 on both; where CPUs differ among themselves this does as PTX says. Which NaN
// comes out is not promised.
#pragma once

inline unsigned __float_as_uint(float v) { return emulator::of_bits<unsigned>(emulator::bits(v)); }
inline int __float_as_int(float v) { return emulator::of_bits<int>(emulator::bits(v)); }
inline float __uint_as_float(unsigned v) { return emulator::of_bits<float>(v); }
inline float __int_as_float(int v) { return emulator::of_bits<float>(emulator::bits(v)); }
inline long long __double_as_longlong(double v) {
    return emulator::of_bits<long long>(emulator::bits(v));
}
inline double __longlong_as_double(long long v) { return emulator::of_bits<double>((uint64_t)v); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)high << 32 | (unsigned)low);
}
inline float __double2float_rn(double v) { return (float)v; }

// To integers, ties to even: what is too large becomes the nearest integer there is. A NaN becomes
// 0 from f32, and the lowest integer from f64.
inline int __double2int_rn(double v) {
    double whole = std::nearbyint(v);
    if (whole >= 2147483648.0) return INT32_MAX;
    return whole >= -2147483648.0 ? (int)whole : INT32_MIN;
}
inline int __float2int_rn(float v) { return v != v ? 0 : __double2int_rn((double)v); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }

inline unsigned __brev(unsigned v) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (v >> i & 1) << (31 - i);
    return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
// Byte i of the result is the one of y:x that digit i of the selector names.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    // The documentation ignores the highest bit of a digit, the instruction repeats a sign.
    if (selector & 0x8888u) emulator::fail("a byte selector above 7");
    uint64_t all = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        result |= (unsigned)(all >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return result;
}

namespace emulator {

// The one that is a number; of zeros, -0 is the lesser.
template <class T>
T lesser(T a, T b) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}
template <class T>
T greater(T a, T b) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}

template <class T>
struct Same {
    typedef T type;
};

// Loads through the intrinsics say what alignment they need.
template <class T>
T load(const T* at) {
    if (__builtin_expect((uintptr_t)at % sizeof(T) != 0, 0)) fail("a load that is not aligned");
    return *at;
}

// Fibers take turns, so reading and writing is one step.
template <class T>
T exchange(T* at, T v) {
    T old = load(at);
    *at = v;
    return old;
}

}  // namespace emulator

// The C library leaves the order of zeros to the machine.
#define fminf(...) emulator::lesser<float>(__VA_ARGS__)
#define fmaxf(...) emulator::greater<float>(__VA_ARGS__)
#define fmin(...) emulator::lesser<double>(__VA_ARGS__)
#define fmax(...) emulator::greater<double>(__VA_ARGS__)
using std::fabs;

template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> Both;
    if constexpr (std::is_floating_point_v<Both>) return emulator::lesser<Both>(a, b);
    return (Both)b < (Both)a ? (Both)b : (Both)a;
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> Both;
    if constexpr (std::is_floating_point_v<Both>) return emulator::greater<Both>(a, b);
    return (Both)a < (Both)b ? (Both)b : (Both)a;
}

template <class T>
T __ldg(const T* at) {
    return emulator::load(at);
}
template <class T>
T __ldcs(const T* at) {
    return emulator::load(at);
}

template <class T>
T atomicAdd(T* at, typename emulator::Same<T>::type v) {
    return emulator::exchange(at, (T)(*at + v));
}
template <class T>
T atomicMin(T* at, typename emulator::Same<T>::type v) {
    return emulator::exchange(at, min(*at, v));
}
template <class T>
T atomicMax(T* at, typename emulator::Same<T>::type v) {
    return emulator::exchange(at, max(*at, v));
}
template <class T>
T atomicOr(T* at, typename emulator::Same<T>::type v) {
    return emulator::exchange(at, (T)(*at | v));
}
template <class T>
T atomicExch(T* at, typename emulator::Same<T>::type v) {
    return emulator::exchange(at, v);
}
template <class T>
T atomicCAS(T* at, typename emulator::Same<T>::type expected, typename emulator::Same<T>::type v) {
    T old = emulator::load(at);
    if (old == expected) *at = v;
    return old;
}
