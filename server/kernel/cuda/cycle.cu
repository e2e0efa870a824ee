// The kernel: a whole decode cycle in one cooperative launch of one block for each SM. Every warp goes through all
// instructions in its own role; between two instructions stands a barrier of all SMs, which the producer ignores.

DEVICE u32 row_count(const Instruction& i, u32 behind) {
  return i.rows_kind == ROWS_BEHIND ? behind : i.rows_kind == ROWS_ONE ? 1 : (u32)i.rows_limit;
}
// This SM has finished an instruction. Its threads have met at a barrier: whoever sees the arrival sees what they wrote.
DEVICE void arrive(const Launch& l) { add_release(l.barrier, 1); }

DEVICE void wait_for_grid(const Launch& l, u32 index) {
  const u32 arrivals = ((u32)l.epoch + index) * sm_count();
  Patience patience;
  while ((i32)(load_relaxed(l.barrier) - arrivals) < 0) poll(patience, l, AT_GRID);
  fence_gpu();
}

// By the loader: instruction `index` to shared memory. The one before the last one lay there; this SM has finished it.
DEVICE void copy_instruction(const Launch& l, u32 index, u32 length, u32 fold) {
  if (index >= l.count) return;
  const Instruction& from = l.instructions[index];
  Here& to = here(index);
  for (u32 word = thread_index() & 31; word < sizeof(Instruction) / 8; word += 32)
    ((u64*)&to.instruction)[word] = ((const u64*)&from)[word];
  if ((thread_index() & 31) == 0) {
    to.range = from.ranges[sm_index()];
    to.length = length;
    to.fold = fold;
  }
  sync_warp();
  if ((thread_index() & 31) == 0) barrier_arrive(&barriers().copied[index & 1]);
}
DEVICE const Instruction& instruction(const Launch& l, u32 index) {
  barrier_wait(&barriers().copied[index & 1], index >> 1 & 1, l, AT_COPIED);
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
  Barriers& b = barriers();

  if (warp == PRODUCER_WARP) {
    produce(l);
  } else if (warp == LOADER_WARP) {
    u32 turns = 0;
    copy_instruction(l, 0, length, fold);
    for (u32 index = 0; index < l.count; ++index) {
      const Instruction& i = here(index).instruction;
      if ((thread_index() & 31) == 0) wait_for_grid(l, index);
      sync_warp();
      fence_loads();
      if ((thread_index() & 31) == 0) barrier_arrive(&b.go);
      if (streams(i)) turns = load_input(i, l, row_count(i, behind), turns);
      copy_instruction(l, index + 1, length, fold);
      if (index + 1 < l.count) prefetch_state(here(index + 1).instruction, length);
    }
  } else {
    u32 turns = 0;
    for (u32 index = 0; index < l.count; ++index) {
      const Instruction& i = instruction(l, index);
      const u32 rows = row_count(i, behind);
      const bool math = warp < MATH_WARPS;
      stamp(l, index, BEGUN);
      if (math && streams(i)) {
        turns = multiply(i, l, index, rows, turns);
        continue;
      }
      if (!math || i.kind != DELTA_RULE) barrier_wait(&b.go, index & 1, l, AT_GO);  // it waits when it has to
      stamp(l, index, LET_IN);
      if (streams(i)) {
        turns = finish(i, l, index, rows, length, turns);
        stamp(l, index, COMPUTED);
        fence_loads();
        sync_threads(8, 32 * EPILOGUE_WARPS);
      } else {
        if (math) run_on_workers(i, l, index, rows);
        fence_loads();
        sync_threads(9, WORKERS + 32 * EPILOGUE_WARPS);
        stamp(l, index, COMPUTED);
      }
      if (thread_index() == 32 * MATH_WARPS) arrive(l);
      stamp(l, index, ARRIVED);
    }
  }
}
