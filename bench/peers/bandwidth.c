// Read-only memory bandwidth as a shared library, so that a benchmark can probe it between two
// measured blocks of its own. The widest loads that the compiler's target offers are used.
//
//   cc -O3 -march=native -shared -fPIC -pthread bandwidth.c -o libbandwidth.so
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
typedef __m512i vec;
#define ZERO _mm512_setzero_si512()
#define LOAD(p) _mm512_load_si512(p)
#define XOR(a, b) _mm512_xor_si512(a, b)
#elif defined(__AVX2__)
typedef __m256i vec;
#define ZERO _mm256_setzero_si256()
#define LOAD(p) _mm256_load_si256(p)
#define XOR(a, b) _mm256_xor_si256(a, b)
#else
#error "the probe needs AVX2 or AVX-512"
#endif

enum { LANES = 8, THREADS_MAX = 64 };
static const size_t HUGE_PAGE_BYTES = (size_t)2 << 20;

struct slice {
  const char *start;
  size_t bytes;
  vec digest;  // kept, so that the loads cannot be removed
};

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static vec read_all(const char *start, size_t bytes) {
  vec acc[LANES];
  for (int i = 0; i < LANES; i++) acc[i] = ZERO;
  for (size_t at = 0; at < bytes; at += LANES * sizeof(vec)) {
    const vec *p = (const vec *)(start + at);
    for (int i = 0; i < LANES; i++) acc[i] = XOR(acc[i], LOAD(p + i));
  }
  for (int i = 1; i < LANES; i++) acc[0] = XOR(acc[0], acc[i]);
  return acc[0];
}

static void *read_slice(void *argument) {
  struct slice *slice = argument;
  slice->digest = read_all(slice->start, slice->bytes);
  return NULL;
}

// Allocates and touches `bytes` of anonymous memory on 2 MiB pages; NULL when there is none.
void *bandwidth_alloc(size_t bytes) {
  void *raw = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return NULL;
  char *start = (char *)(((size_t)raw + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1));
  madvise(start, bytes, MADV_HUGEPAGE);
  memset(start, 1, bytes);
  return start;
}

// Reads the memory once with `threads` threads; returns GB/s, or a negative number on failure.
double bandwidth_read(const char *start, size_t bytes, int threads) {
  pthread_t handle[THREADS_MAX];
  struct slice slice[THREADS_MAX];
  if (threads < 1 || threads > THREADS_MAX) return -1.0;
  const size_t unit = LANES * sizeof(vec);
  const size_t share = bytes / threads / unit * unit;
  const double began = now_seconds();
  for (int i = 0; i < threads; i++) {
    slice[i].start = start + share * i;
    slice[i].bytes = share;
    if (pthread_create(&handle[i], NULL, read_slice, &slice[i]) != 0) return -1.0;
  }
  for (int i = 0; i < threads; i++) pthread_join(handle[i], NULL);
  return share * threads / (now_seconds() - began) / 1e9;
}
