// The functions of server/kernel/cuda/primitives.cuh on a CPU, with their names, signatures and meaning.

#pragma once
#include <time.h>

#include "numbers.h"
#include "scheduler.h"

#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define DEVICE __device__ __forceinline__
#define ROLE inline

#define LINE int line = __builtin_LINE()

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline u64 min(u64 a, u64 b) { return a < b ? a : b; }
inline u64 max(u64 a, u64 b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

DEVICE u32 thread_index() { return emulator::current->thread; }
DEVICE u32 sm_index() { return emulator::current->warp->block->index; }
DEVICE u32 sm_count() { return (u32)emulator::machine->blocks.size(); }

#define shared_memory (emulator::current->warp->block->shared)
template <class T> DEVICE T* shared(u32 at) { return (T*)(shared_memory + at); }
DEVICE bool shared_base_is_right() { return true; }
DEVICE u32 address(u32 at) { return at; }

// ---- warps

inline void sync_warp(LINE) {
  (void)line;  // lanes may come from different places
  int nothing = 0;
  emulator::collective("sync_warp", 0, nothing, [](emulator::Collective) {});
}
template <class T> struct Shuffled {
  T value, result;
  u32 lane;
};
template <class T> inline T shuffle(T v, u32 lane, LINE) {
  Shuffled<T> mine = {v, v, lane & 31};
  emulator::collective("shuffle", line, mine, [](emulator::Collective all) {
    for (u32 i = 0; i < 32; i++) {
      auto& own = all.of<Shuffled<T>>(i);
      own.result = all.of<Shuffled<T>>(own.lane).value;
    }
  });
  return mine.result;
}
template <class T> inline T shuffle_xor(T v, u32 mask, LINE) {
  return shuffle(v, emulator::current->lane ^ mask, line);
}
struct Reduced {
  u32 value, result;
};
inline i32 sum_of_lanes(i32 v, LINE) {
  Reduced mine = {(u32)v, 0};
  emulator::collective("sum_of_lanes", line, mine, [](emulator::Collective all) {
    u32 sum = 0;
    for (u32 i = 0; i < 32; i++) sum += all.of<Reduced>(i).value;
    for (u32 i = 0; i < 32; i++) all.of<Reduced>(i).result = sum;
  });
  return (i32)mine.result;
}
inline u32 greatest_of_lanes(u32 v, LINE) {
  Reduced mine = {v, 0};
  emulator::collective("greatest_of_lanes", line, mine, [](emulator::Collective all) {
    u32 most = 0;
    for (u32 i = 0; i < 32; i++) most = std::max(most, all.of<Reduced>(i).value);
    for (u32 i = 0; i < 32; i++) all.of<Reduced>(i).result = most;
  });
  return mine.result;
}
inline bool all_lanes(bool v, LINE) { return greatest_of_lanes(!v, line) == 0; }
template <class T> inline T uniform(T v, LINE) {
  if (!all_lanes(shuffle(v, 0, line) == v, line)) emulator::fail("uniform in line %d of values that differ", line);
  return v;
}
inline void sync_threads(u32 id, u32 threads) {
  if (id == 0 || id > 15) emulator::fail("barrier %u: they are 1 to 15", id);
  emulator::sync_named(id, threads);
}

// ---- waiting

DEVICE u64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}
struct Patience {
  u32 polls = 0;
  u64 since = 0;
};
inline void give_up(const Launch&, u32 where) { emulator::fail("given up at %u", where); }
inline void poll(Patience& p, const Launch&, u32 where) {
  p.polls++;
  emulator::current->where = where;
  emulator::wait(emulator::POLL);
}

// ---- mbarriers

inline void barrier_init(u32 b, u32 arrivals) { emulator::new_barrier(shared_memory + b, arrivals); }
inline void barrier_arrive(u32 b) { emulator::arrive(emulator::current->warp->block, emulator::barrier_index(shared_memory + b)); }
inline bool barrier_is_done(u32 b, u32 parity) { return emulator::is_over(emulator::barrier_index(shared_memory + b), parity); }
inline bool barrier_done(u32 b, u32 parity) { return emulator::is_over(emulator::barrier_index(shared_memory + b), parity); }
inline void barrier_wait(u32 b, u32 parity, const Launch&, u32 where) {
  u32 index = emulator::barrier_index(shared_memory + b);
  while (!emulator::is_over(index, parity)) {
    emulator::current->on = index;
    emulator::current->parity = parity;
    emulator::current->where = where;
    emulator::wait(emulator::BARRIER);
  }
  sync_warp();
}

// ---- copies

DEVICE void load_barrier_init(u32 b) { barrier_init(b, ARCH >= 90 ? 1 : 32); }
DEVICE u64 stream_policy() { return 0; }
inline void load_begin(u32 b, u32 bytes) {
  if (ARCH >= 90 && emulator::current->lane == 0)
    emulator::announce(emulator::current->warp->block, emulator::barrier_index(shared_memory + b), bytes);
}
inline void load(u32 to, const void* from, u32 bytes, u32 b) {
  if (ARCH >= 90) {
    if (emulator::current->lane == 0) emulator::begin_copy(shared_memory + to, from, bytes, emulator::barrier_index(shared_memory + b), false);
    return;
  }
  for (u32 at = 16 * emulator::current->lane; at < bytes; at += 512)
    emulator::begin_copy(shared_memory + to + at, (const u8*)from + at, 16, 0, true);
}
DEVICE void load_stream(u32 to, const void* from, u32 bytes, u32 b, u64) { load(to, from, bytes, b); }
inline void prefetch(const void* from, u32 bytes) {
  if (bytes % 16 || (uintptr_t)from % 16) emulator::fail("a prefetch of %u bytes from %p: both are multiples of 16", bytes, from);
  u8 last = *((const volatile u8*)from + bytes - 1);
  (void)last;
}
inline void load_end(u32 b) {
  if (ARCH < 90) emulator::arrive_behind_copies(emulator::barrier_index(shared_memory + b));
  else if (emulator::current->lane == 0) barrier_arrive(b);
}
DEVICE void fence_loads() {}
DEVICE void fence_barrier_init() {}

// ---- between SMs

inline void add_release(u32* p, u32 v) {
  *p += v;
  emulator::event();
}
inline void store_release(u32* p, u32 v) {
  *p = v;
  emulator::event();
}
DEVICE u32 load_relaxed(const u32* p) { return *(const volatile u32*)p; }
DEVICE u32 load_acquire(const u32* p) { return load_relaxed(p); }
inline void wait_for_count(const u32* p, u32 wanted, const Launch& l, u32 where) {
  Patience patience;
  while ((i32)(load_relaxed(p) - wanted) < 0) poll(patience, l, where);
}
DEVICE float load_fresh(const float* p) { return *(const volatile float*)p; }
DEVICE i32 load_fresh(const i32* p) { return *(const volatile i32*)p; }

inline const void* aligned(const void* p, u32 bytes) {
  if ((uintptr_t)p % bytes) emulator::fail("%u bytes read at once from %p, which isn't a multiple of that", bytes, p);
  return p;
}

// ---- shared memory by byte offset

DEVICE u32 place_of(u32 at) { return at; }
inline const u8* in_shared(u32 at, u32 bytes) {
  const u8* p = shared_memory + at;
  emulator::shared_at(emulator::current->warp->block, p, bytes, bytes, "words");
  return p;
}
inline u32 shared_word(u32 at) { u32 v; memcpy(&v, in_shared(at, 4), 4); return v; }
inline float shared_float(u32 at) { float v; memcpy(&v, in_shared(at, 4), 4); return v; }
struct Words2 { u32 x, y; };
struct Words4 { u32 x, y, z, w; };
inline Words2 shared_words2(u32 at) { Words2 v; memcpy(&v, in_shared(at, 8), 8); return v; }
inline Words4 shared_words4(u32 at) { Words4 v; memcpy(&v, in_shared(at, 16), 16); return v; }
inline Words2 fresh_words2(const void* p) { Words2 v; memcpy(&v, aligned(p, 8), 8); return v; }
inline Words4 fresh_words4(const void* p) { Words4 v; memcpy(&v, aligned(p, 16), 16); return v; }

// ---- bits

DEVICE u32 in_register(u32 v) { return v; }
DEVICE float as_float(u32 v) { return emulator::float_of(v); }
DEVICE u32 as_bits(float v) { return emulator::bits_of(v); }
inline u32 permute(u32 a, u32 b, u32 selector) {
  u64 both = (u64)b << 32 | a;
  u32 found = 0;
  for (u32 i = 0; i < 4; i++) {
    u32 which = selector >> (4 * i) & 15;
    if (which > 7) emulator::fail("permute with selector %08x: there are 8 bytes", selector);
    found |= (u32)(both >> (8 * which) & 255) << (8 * i);
  }
  return found;
}

// ---- half precision, as bits

inline float half_to_float(u16 h) { return emulator::half_value(h); }
inline u32 float_to_bfloat2(float low, float high) { return emulator::bfloat_of(low) | (u32)emulator::bfloat_of(high) << 16; }
inline u32 float_to_half2(float low, float high) { return emulator::half_of(low) | (u32)emulator::half_of(high) << 16; }
inline u32 half2_fma(u32 a, u32 b, u32 c) {
  u32 found = 0;
  for (u32 at = 0; at < 32; at += 16) {
    double x = emulator::half_value(a >> at), y = emulator::half_value(b >> at), z = emulator::half_value(c >> at);
    found |= (u32)emulator::half_of(emulator::odd_sum(x * y, z)) << at;
  }
  return found;
}
inline u32 bfloat2_fma(u32 a, u32 b, u32 c) {
  u32 found = 0;
  for (u32 at = 0; at < 32; at += 16) {
    double x = emulator::bfloat_value(a >> at), y = emulator::bfloat_value(b >> at), z = emulator::bfloat_value(c >> at);
    found |= (u32)emulator::bfloat_of(emulator::odd_sum(x * y, z)) << at;
  }
  return found;
}

// ---- tensor cores. A is [16][K], B is [K][8], C is [16][8]; lane = 4 g + t.

template <class Sum> struct Fragments {
  Sum* c;
  u32 a[4], b[2];
};
// Words of A and B hold `PER_WORD` values of k each. value_a, value_b(word, i): the i-th of them.
template <u32 PER_WORD, u32 HALVES, class Sum, class A, class B>
inline void multiply(emulator::Collective all, A value_a, B value_b) {
  constexpr u32 SPAN = 4 * PER_WORD, K = SPAN * HALVES;
  Sum a[16][K], b[8][K];
  for (u32 lane = 0; lane < 32; lane++) {
    auto& own = all.of<Fragments<Sum>>(lane);
    u32 g = lane / 4, t = lane % 4;
    for (u32 half = 0; half < HALVES; half++)
      for (u32 i = 0; i < PER_WORD; i++) {
        u32 k = half * SPAN + t * PER_WORD + i;
        a[g][k] = value_a(own.a[2 * half], i);
        a[g + 8][k] = value_a(own.a[2 * half + 1], i);
        b[g][k] = value_b(own.b[half], i);
      }
  }
  for (u32 lane = 0; lane < 32; lane++)
    for (u32 i = 0; i < 4; i++) {
      u32 row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      Sum& sum = all.of<Fragments<Sum>>(lane).c[i];
      for (u32 k = 0; k < K; k++) sum += a[row][k] * b[column][k];
    }
}
inline i32 signed_byte(u32 word, u32 i) { return (i8)(word >> (8 * i)); }
inline i32 unsigned_byte(u32 word, u32 i) { return (u8)(word >> (8 * i)); }

inline void mma_u8s8(i32 (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const u32 (&c)[4], LINE) {
  for (u32 i = 0; i < 4; i++) d[i] = (i32)c[i];
  Fragments<i32> own = {d, {a0, a1, a2, a3}, {b0, b1}};
  emulator::collective("mma_u8s8", line, own, [](emulator::Collective all) { multiply<4, 2, i32>(all, unsigned_byte, signed_byte); });
}
inline void mma_s8s8(i32 (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const u32 (&c)[4], LINE) {
  for (u32 i = 0; i < 4; i++) d[i] = (i32)c[i];
  Fragments<i32> own = {d, {a0, a1, a2, a3}, {b0, b1}};
  emulator::collective("mma_s8s8", line, own, [](emulator::Collective all) { multiply<4, 2, i32>(all, signed_byte, signed_byte); });
}
inline void mma_s8s8_k16(i32 (&d)[4], u32 a0, u32 a1, u32 b0, const u32 (&c)[4], LINE) {
  for (u32 i = 0; i < 4; i++) d[i] = (i32)c[i];
  Fragments<i32> own = {d, {a0, a1, 0, 0}, {b0, 0}};
  emulator::collective("mma_s8s8_k16", line, own, [](emulator::Collective all) { multiply<4, 1, i32>(all, signed_byte, signed_byte); });
}
inline void mma_half(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, LINE) {
  Fragments<float> own = {c, {a0, a1, a2, a3}, {b0, b1}};
  auto value = [](u32 word, u32 i) { return emulator::half_value((u16)(word >> (16 * i))); };
  emulator::collective("mma_half", line, own, [&](emulator::Collective all) { multiply<2, 2, float>(all, value, value); });
}
inline void mma_bfloat(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, LINE) {
  Fragments<float> own = {c, {a0, a1, a2, a3}, {b0, b1}};
  auto value = [](u32 word, u32 i) { return emulator::bfloat_value((u16)(word >> (16 * i))); };
  emulator::collective("mma_bfloat", line, own, [&](emulator::Collective all) { multiply<2, 2, float>(all, value, value); });
}

// ---- arithmetic

DEVICE float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
DEVICE float exponential(float x) { return std::exp(x); }
DEVICE float logarithm1p(float x) { return std::log1p(x); }
DEVICE float inverse_root(float x) { return (float)(1.0 / std::sqrt((double)x)); }
DEVICE float rsqrtf(float x) { return inverse_root(x); }
DEVICE float maximum(float a, float b) { return std::fmax(a, b); }
DEVICE i32 round_to_int(float x) { return (i32)std::nearbyint(x); }

#undef LINE
