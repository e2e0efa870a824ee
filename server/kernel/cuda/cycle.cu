// The kernel: a whole decode cycle in one cooperative launch of one block for each SM. Every warp goes through all
// instructions in its own role; between two instructions stands a barrier of all SMs, which the producer ignores.

// This SM has finished an instruction. Its threads have met at a barrier: whoever sees the arrival sees what they wrote.
DEVICE void arrive(const Launch& l) { add_release(l.barrier, 1); }

DEVICE const Instruction& instruction(const Launch& l, u32 index) {
  barrier_wait(Barriers::copied(index & 1), index >> 1 & 1, l, AT_COPIED);
  return here(index).instruction;
}

DEVICE void run_on_workers(const Instruction& i, const Launch& l, u32 index, u32 rows) {
  switch (i.kind) {
    case EMBED: embed(i, l, rows); break;
    case MTP_INPUT: mtp_input(i, l, rows); break;
    case DELTA_RULE: delta_rule(i, l, index, rows); break;
    case ATTENTION: attention(i, l, rows); break;
    case ATTENTION_REDUCE: attention_reduce(i, l, rows); break;
    case VERIFY: verify(i, l, rows); break;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) cycle(const __grid_constant__ Launch l) {
  const u32 warp = thread_index() / 32;
  if (!shared_base_is_right()) give_up(l, AT_SHARED_BASE);
  if (thread_index() == 0) init_barriers();
  const u32 behind = (u32)l.counts[BEHIND_COUNT], length = (u32)l.counts[LENGTH], fold = (u32)l.counts[FOLD];
  sync_threads(1, THREADS);

  if (warp == PRODUCER_WARP) {
    produce(l);
  } else if (warp == LOADER_WARP) {
    bring(l, behind, length, fold);
  } else {
    u32 turns = 0;
    for (u32 index = 0; index < l.count; ++index) {
      const Instruction& i = instruction(l, index);
      const u32 rows = row_count(i, behind);
      const bool math = warp < MATH_WARPS;
      stamp(l, index, BEGUN);
      if (math && streams(i)) {
        // Asked before: once its sums are there, the others may finish the instruction, and another comes to its place.
        const bool ends = all_lanes(ends_on_all_warps(i, index, rows));
        turns = multiply(i, l, index, rows, turns);
        if (ends) finish_last(i, portion(i, index, portion_count(i) - 1), rows, turns);
        continue;
      }
      if (!math || i.kind != DELTA_RULE) barrier_wait(Barriers::go(), index & 1, l, AT_GO);  // it waits when it has to
      stamp(l, index, LET_IN);
      if (streams(i)) {
        turns = finish(i, l, index, rows, length, turns);
        stamp(l, index, COMPUTED);
        sync_threads(8, 32 * EPILOGUE_WARPS);
      } else {
        if (math) run_on_workers(i, l, index, rows);
        sync_threads(9, WORKERS + 32 * EPILOGUE_WARPS);
        stamp(l, index, COMPUTED);
      }
      if (thread_index() == 32 * MATH_WARPS) arrive(l);
      stamp(l, index, ARRIVED);
    }
  }
}
