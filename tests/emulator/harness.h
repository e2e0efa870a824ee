// What Python calls: a launch of ENTRY(PARAMETER), and the sizes of the structs that it is given.

#pragma once
#include <pthread.h>
#include <stdlib.h>

namespace emulator {

static const void* parameter = nullptr;

static void lane_main() {
  ENTRY(*(const PARAMETER*)parameter);
  Lane* lane = current;
  Warp* warp = lane->warp;
  if (warp->in_collective) fail("ends while other lanes of the warp are in a collective");
  warp->done++;
  if (++warp->block->done == machine->threads && warp->block->copies)
    fail("the last lane of the block ends with %u copies on their way", warp->block->copies);
  wait(DONE);
  __builtin_unreachable();
}

static pthread_t runner;

static void broken(int signal, siginfo_t* info, void*) {
  if (!pthread_equal(pthread_self(), runner)) {  // an alarm may come to any thread
    if (signal == SIGALRM) pthread_kill(runner, signal);
    else abort();
    return;
  }
  std::string text;
  if (current) say(text, "block %u warp %u lane %u ", current->warp->block->index, current->warp->index, current->lane);
  if (signal == SIGALRM) {
    say(text, "runs for too long");
  } else {
    say(text, "reads or writes closed memory at %p", info->si_addr);
    for (Block& block : machine->blocks) {
      long long at = (long long)((uint8_t*)info->si_addr - block.shared);
      if (at >= -4096 && at < machine->shared_bytes + 4096ll)
        say(text, ": byte %lld of %u of block %u's shared memory", at, machine->shared_bytes, block.index);
    }
  }
  machine->failure = text;
  siglongjmp(machine->broken, 1);
}

// Signals that a launch can cause are its own while it runs.
struct Signals {
  static constexpr int NUMBERS[3] = {SIGSEGV, SIGBUS, SIGALRM};
  struct sigaction before[3];
  stack_t stack_before;
  itimerval timer_before;
  explicit Signals(uint32_t seconds) {
    runner = pthread_self();
    static uint8_t stack[65536];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = broken;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(NUMBERS[i], &action, &before[i]);
    itimerval timer = {};
    timer.it_value.tv_sec = seconds;
    setitimer(ITIMER_REAL, &timer, &timer_before);
  }
  ~Signals() {
    itimerval none = {};
    setitimer(ITIMER_REAL, &none, nullptr);
    for (int i = 0; i < 3; i++) sigaction(NUMBERS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
    setitimer(ITIMER_REAL, &timer_before, nullptr);
  }
};
constexpr int Signals::NUMBERS[3];

static uint8_t* shared_memories(uint32_t blocks, uint32_t bytes, std::vector<uint8_t*>& found) {
  static std::map<uint32_t, std::vector<uint8_t*>> kept;
  std::vector<uint8_t*>& have = kept[bytes];
  while (have.size() < blocks) {
    have.push_back(guarded(bytes, 128));
    if (!have.back()) return nullptr;
  }
  found.assign(have.begin(), have.begin() + blocks);
  return found[0];
}

static void launch(uint32_t blocks, uint32_t threads, uint32_t shared_bytes) {
  std::vector<uint8_t*> memories;
  uint8_t* stack = stacks((size_t)blocks * threads);
  if (!stack || !shared_memories(blocks, shared_bytes, memories)) {
    machine->failure = "there is no memory for so many threads";
    return;
  }
  machine->blocks.resize(blocks);
  for (uint32_t b = 0; b < blocks; b++) {
    Block& block = machine->blocks[b];
    block.index = b;
    block.shared = memories[b];
    memset(block.shared, 0xff, shared_bytes);
    block.warps.resize(threads / 32);
    block.lanes.resize(threads);
    for (uint32_t t = 0; t < threads; t++) {
      Lane& lane = block.lanes[t];
      lane.warp = &block.warps[t / 32];
      lane.thread = t;
      lane.lane = t % 32;
      size_t index = (size_t)b * threads + t;
      begin(lane.context, stack + index * STACK_BYTES, index % 61 * 192, lane_main);
    }
    for (uint32_t w = 0; w < threads / 32; w++) {
      block.warps[w].block = &block;
      block.warps[w].index = w;
      block.warps[w].lanes = &block.lanes[32 * w];
    }
  }
  for (Block& block : machine->blocks)
    for (Warp& warp : block.warps) wake(&warp);
  if (sigsetjmp(machine->broken, 1) == 0) run_machine();
  if (!machine->failure.empty()) return;
  for (Block& block : machine->blocks)
    for (Barrier& barrier : block.barriers)
      if (barrier.bytes && machine->failure.empty())
        say(machine->failure, "block %u ends with %lld bytes announced to the mbarrier at byte %u that never came", block.index,
            (long long)barrier.bytes, barrier.at);
}

}  // namespace emulator

// Runs a launch. 0, or 1 and in `failure` why it ended early. delay: turns that a copy takes at most (0: none).
extern "C" int emulator_run(const void* parameter, u32 blocks, u32 threads, u32 shared_bytes, u64 seed, u32 delay,
                            u32 seconds, char* failure, u32 room) {
  emulator::Machine machine;
  emulator::machine = &machine;
  emulator::current = nullptr;
  emulator::parameter = parameter;
  machine.threads = threads;
  machine.shared_bytes = shared_bytes;
  machine.delay = delay;
  machine.random = seed * 0x9e3779b97f4a7c15ull + 0x1234567ull;
  {
    emulator::Signals signals(seconds);
    emulator::launch(blocks, threads, shared_bytes);
  }
  emulator::current = nullptr;
  emulator::machine = nullptr;
  snprintf(failure, room, "%s", machine.failure.c_str());
  return !machine.failure.empty();
}

// Memory between closed pages, for what a kernel must not reach beyond.
extern "C" void* emulator_memory(u64 bytes) { return emulator::guarded(bytes, 16); }
