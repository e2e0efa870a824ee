// A read stream as the decode kernel has it, and nothing else: a producer warp fills a ring of stages in shared memory
// with every SM's share of one matrix after another, math warps wait for a stage and give it back. Behind types.cuh and
// primitives.cuh of server/kernel/cuda. STAGES, STAGE_BYTES: the ring.

struct Piece {
  const u8* from;
  u64 bytes;  // a multiple of 16
};
struct Stream {
  const Piece* pieces;
  u64 count;
  u64* read;   // [SMs] bytes that each has read
  u32* fault;  // as in Launch
};
constexpr u32 FULL_OFFSET = STAGES * STAGE_BYTES, EMPTY_OFFSET = FULL_OFFSET + 8 * STAGES;

extern "C" __global__ void __launch_bounds__(THREADS, 1) stream(const __grid_constant__ Stream s) {
  Launch l{};
  l.fault = s.fault;
  if (!shared_base_is_right()) give_up(l, 3);
  if (thread_index() == 0) {
    for (u32 slot = 0; slot < STAGES; ++slot) {
      load_barrier_init(FULL_OFFSET + 8 * slot);
      barrier_init(EMPTY_OFFSET + 8 * slot, MATH_WARPS);
    }
    fence_barrier_init();
  }
  sync_threads(1, THREADS);
  const u32 warp = thread_index() / 32, sm = sm_index();
  if (warp >= MATH_WARPS && warp != PRODUCER_WARP) return;
  const u64 policy = stream_policy();
  u64 read = 0;
  u32 slot = 0, parity = 0;
  for (u64 p = 0; p < s.count; ++p) {
    const Piece piece = s.pieces[p];
    const u64 units = piece.bytes / 16;
    u64 at = units * sm / sm_count() * 16;
    const u64 stop = units * (sm + 1) / sm_count() * 16;
    for (; at < stop; at += STAGE_BYTES) {
      const u32 full = FULL_OFFSET + 8 * slot, empty = EMPTY_OFFSET + 8 * slot;
      const u32 bytes = stop - at < STAGE_BYTES ? (u32)(stop - at) : STAGE_BYTES;
      if (warp == PRODUCER_WARP) {
        barrier_wait(empty, parity ^ 1, l, 2);
        load_begin(full, bytes);
        load_stream(slot * STAGE_BYTES, piece.from + at, bytes, full, policy);
        load_end(full);
      } else {
        barrier_wait(full, parity, l, 1);
        if ((thread_index() & 31) == 0) barrier_arrive(empty);
      }
      read += bytes;
      if (++slot == STAGES) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
  if (thread_index() == 0) s.read[sm] = read;
}
