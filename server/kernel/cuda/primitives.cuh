// The only text that knows PTX: everything else in this folder calls these. tests/emulator has the same functions for a
// CPU. ARCH is 80, 86, 89, 90, 100 or 120.

#define DEVICE __device__ __forceinline__
// A role or an instruction: registers are allocated for each by itself, so that what one needs doesn't spill another's.
#define ROLE __device__ __noinline__

DEVICE u32 thread_index() { u32 v; asm("mov.u32 %0, %%tid.x;" : "=r"(v)); return v; }
DEVICE u32 sm_index() { u32 v; asm("mov.u32 %0, %%ctaid.x;" : "=r"(v)); return v; }
DEVICE u32 sm_count() { u32 v; asm("mov.u32 %0, %%nctaid.x;" : "=r"(v)); return v; }

extern __shared__ __align__(1024) u8 shared_memory[];
// Pointer to byte `at` of the block's dynamic shared memory.
template <class T> DEVICE T* shared(u32 at) { return (T*)(shared_memory + at); }
// The address of byte `at` of dynamic shared memory. Where it begins is a constant, so that it goes into the instructions
// that use it; asked for, it would be worked out again and again from the block's place in its cluster. For architectures
// that nobody has run it is asked for all the same. A kernel looks first whether the constant is right.
#if ARCH == 90
DEVICE u32 address(u32 at) { return 1024 + at; }
#else
DEVICE u32 address(u32 at) { return (u32)__cvta_generic_to_shared(shared_memory) + at; }
#endif
DEVICE bool shared_base_is_right() { return address(0) == (u32)__cvta_generic_to_shared(shared_memory); }

// ---- warps
DEVICE void sync_warp() { __syncwarp(); }
template <class T> DEVICE T shuffle(T v, u32 lane) { return __shfl_sync(~0u, v, lane); }
template <class T> DEVICE T shuffle_xor(T v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
// Over all lanes, in every lane.
DEVICE i32 sum_of_lanes(i32 v) { i32 r; asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v)); return r; }
DEVICE u32 greatest_of_lanes(u32 v) { u32 r; asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v)); return r; }
// Whether it is so in all lanes; a value that is the same in all lanes already, so that the compiler can know it.
DEVICE bool all_lanes(bool v) { return __all_sync(~0u, v); }
template <class T> DEVICE T uniform(T v) { return __shfl_sync(~0u, v, 0); }
// Barrier `id` (1..15) of `threads` threads of the block.
DEVICE void sync_threads(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- waiting. A launch is given up, and *fault says why, when a wait takes longer than two seconds.
DEVICE u64 nanoseconds() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
struct Patience {
  u64 since = 0;
};
DEVICE void give_up(const Launch& l, u32 where) {
  *l.fault = where | (sm_index() << 8);
  asm volatile("fence.acq_rel.sys; trap;" ::: "memory");
}
DEVICE void poll(Patience& p, const Launch& l, u32 where) {
  const u64 now = nanoseconds();
  if (p.since == 0) p.since = now;
  if (now - p.since > 2000000000ull) give_up(l, where);
}

// ---- mbarriers in shared memory (u64 each), by their byte offsets
DEVICE void barrier_init(u32 b, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(b)), "r"(arrivals) : "memory");
}
DEVICE void barrier_arrive(u32 b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(b)) : "memory");
}
// Whether the phase with this parity is over.
DEVICE bool barrier_is_done(u32 b, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(address(b)), "r"(parity) : "memory");
  return done;
}
// The same; from sm_90 on the warp sleeps until then, a millisecond at most: polling
// would take issue slots from those who have something to do.
DEVICE bool barrier_done(u32 b, u32 parity) {
  u32 done;
#if ARCH >= 90
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2, 1000000; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(address(b)), "r"(parity) : "memory");
#else
  done = barrier_is_done(b, parity);
#endif
  return done;
}
// By a whole warp. No lane goes on before all have seen the end of the phase: what the first ones do then may let the
// barrier move on so far that the last ones would wait for ever. Mostly it is over already; the rest stands apart, so that
// the code that runs again and again lies close together.
ROLE void wait_longer(u32 b, u32 parity, const Launch& l, u32 where) {
  Patience p;
  while (!all_lanes(barrier_done(b, parity))) poll(p, l, where);
}
DEVICE void barrier_wait(u32 b, u32 parity, const Launch& l, u32 where) {
  if (!all_lanes(barrier_is_done(b, parity))) wait_longer(b, parity, l, where);
}

// ---- copies from global to shared memory behind the warp's back; `to` is a byte offset there. All lanes of a warp call
// these; addresses and bytes are multiples of 16. load_begin says how many bytes will come, once or before each load;
// load_end says that there are no more: then the barrier's phase ends when all have arrived. From sm_90 on one lane starts
// bulk copies; before, all lanes copy 16 bytes at a time.
DEVICE void load_barrier_init(u32 b) { barrier_init(b, ARCH >= 90 ? 1 : 32); }
DEVICE u64 stream_policy() {
  u64 policy = 0;
#if ARCH >= 90
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
DEVICE void load_begin(u32 b, u32 bytes) {
#if ARCH >= 90
  if ((thread_index() & 31) == 0)
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(bytes) : "memory");
#endif
}
DEVICE void load(u32 to, const void* from, u32 bytes, u32 b) {
#if ARCH >= 90
  if ((thread_index() & 31) == 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(b)) : "memory");
#else
  for (u32 at = 16 * (thread_index() & 31); at < bytes; at += 512)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to) + at), "l"((const u8*)from + at) : "memory");
#endif
}
// Weights: read once, so they shouldn't push anything out of the L2 cache.
DEVICE void load_stream(u32 to, const void* from, u32 bytes, u32 b, u64 policy) {
#if ARCH >= 90
  if ((thread_index() & 31) == 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(b)), "l"(policy) : "memory");
#else
  load(to, from, bytes, b);
#endif
}
DEVICE void load_end(u32 b) {
#if ARCH >= 90
  if ((thread_index() & 31) == 0) barrier_arrive(b);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address(b)) : "memory");
#endif
}
// Brings memory into the L2 cache; all lanes of a warp call it, bytes is a multiple of 16.
DEVICE void prefetch(const void* from, u32 bytes) {
#if ARCH >= 90
  if ((thread_index() & 31) == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
  for (u32 at = 128 * (thread_index() & 31); at < bytes; at += 4096)
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)from + at) : "memory");
#endif
}
// Between ordinary accesses and such copies of the same memory, shared or global, in both directions.
DEVICE void fence_loads() {
#if ARCH >= 90
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
DEVICE void fence_barrier_init() {
#if ARCH >= 90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// ---- between SMs
DEVICE void add_release(u32* p, u32 v) { asm volatile("red.add.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEVICE void store_release(u32* p, u32 v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// Acquiring empties the L1 cache, so it isn't done with every poll.
DEVICE u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// By one lane: until a count that only grows is `wanted`. Then what was released with it is seen.
DEVICE void wait_for_count(const u32* p, u32 wanted, const Launch& l, u32 where) {
  Patience patience;
  while ((i32)(load_acquire(p) - wanted) < 0)
    while ((i32)(load_relaxed(p) - wanted) < 0) poll(patience, l, where);
}
// What another SM has written in this launch is read past the L1 cache, which isn't coherent.
DEVICE float load_fresh(const float* p) { float v; asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p)); return v; }
DEVICE i32 load_fresh(const i32* p) { i32 v; asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }

// ---- shared memory by byte offset: half as many registers as pointers
DEVICE u32 shared_word(u32 at) { u32 v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address(at))); return v; }
DEVICE float shared_float(u32 at) { float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address(at))); return v; }
struct Words2 { u32 x, y; };
struct Words4 { u32 x, y, z, w; };
DEVICE Words2 shared_words2(u32 at) {
  Words2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address(at)));
  return v;
}
DEVICE Words4 shared_words4(u32 at) {
  Words4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address(at)));
  return v;
}
DEVICE Words2 fresh_words2(const void* p) {  // global, 8-byte aligned, past the L1 cache
  Words2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE Words4 fresh_words4(const void* p) {  // global, 16-byte aligned, past the L1 cache
  Words4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// ---- bits
// A constant that stays in a register: the compiler would make it anew at every use. (The block's height is 1.)
DEVICE u32 in_register(u32 v) {
  u32 r;
  asm("{ .reg .u32 h; mov.u32 h, %%ntid.y; add.u32 %0, h, %1; }" : "=r"(r) : "r"(v - 1));
  return r;
}
DEVICE float as_float(u32 v) { return __uint_as_float(v); }
DEVICE u32 as_bits(float v) { return __float_as_uint(v); }
DEVICE float maximum(float a, float b) { return fmaxf(a, b); }
DEVICE u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
DEVICE i32 signed_byte(u32 word, u32 n) {
  i32 v;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(word), "r"(0x8880 | n * 0x1111));  // 8: eight times the byte's sign
  return v;
}

// ---- half precision, as bits
DEVICE float half_to_float(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
// Two bfloat16, `low` in the low 16 bits.
DEVICE u32 float_to_bfloat2(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
DEVICE u32 float_to_half2(float low, float high) {
  u32 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// a * b + c in each half of a pair
DEVICE u32 half2_fma(u32 a, u32 b, u32 c) { u32 v; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c)); return v; }
DEVICE u32 bfloat2_fma(u32 a, u32 b, u32 c) { u32 v; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c)); return v; }

// ---- tensor cores. Floating point: c += a b. Integers: d = a b + c. Lane = 4 g + t. A: a0 (row g), a1 (row g + 8), a2,
// a3 the same rows, second half of k. B: column g, first and second half of k. C: c0, c1 (row g, columns 2t, 2t + 1), c2,
// c3 (row g + 8). int8: a word has k = 4t .. 4t + 3. half, bfloat16: a word has k = 2t, 2t + 1.
DEVICE void mma_u8s8(i32 (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const u32 (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
DEVICE void mma_s8s8(i32 (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const u32 (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
DEVICE void mma_s8s8_k16(i32 (&d)[4], u32 a0, u32 a1, u32 b0, const u32 (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
DEVICE void mma_half(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_bfloat(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// ---- arithmetic that mustn't change with the compiler's mood
DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float exponential(float x) { return expf(x); }
DEVICE float logarithm1p(float x) { return log1pf(x); }
DEVICE float inverse_root(float x) { return rsqrtf(x); }
DEVICE i32 round_to_int(float x) { return __float2int_rn(x); }
