// Blocks, warps and lanes that take turns, and what they wait for.
//
// All blocks of a launch are alive at once. Each turn goes to a random warp that has lanes to run; each of these lanes
// runs until it waits for something. Copies begun by loads arrive some turns later. Whatever would be undefined or
// would hang on a GPU ends the launch with a message instead.

#pragma once
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fibers.h"

namespace emulator {

enum State { READY, COLLECTIVE, SYNC, BARRIER, POLL, DONE };

struct Barrier {  // an mbarrier; its word in shared memory holds MAGIC and its index
  uint32_t at, arrivals, pending, parity;
  int64_t bytes;  // announced and not yet arrived
};
constexpr uint64_t MAGIC = 0xb1a5ed00ull << 32;

struct NamedBarrier {
  uint32_t expected = 0, arrived = 0;
  uint32_t lanes[32] = {};  // by warp
};

struct Warp;
struct Lane {
  Context context;
  Warp* warp;
  uint32_t thread, lane;
  State state;
  const char* doing;      // of a collective
  int line;
  uint32_t where, on;     // of a wait: the caller's number, and which barrier
  uint32_t parity;
  void* arguments;        // of a collective
  uint32_t copies;        // of this lane that haven't arrived
};

struct Block;
struct Warp {
  Block* block;
  uint32_t index;
  Lane* lanes;
  uint32_t in_collective, first, done;  // lanes in a collective, which came first, which have ended
  bool queued, polling;
};

struct Block {
  uint32_t index;
  uint8_t* shared;
  std::vector<Warp> warps;
  std::vector<Lane> lanes;
  std::vector<Barrier> barriers;
  NamedBarrier named[16];
  uint32_t copies;  // that haven't arrived
  uint32_t done;    // lanes that have ended
};

struct Copy {
  uint64_t due, order;
  Block* block;
  uint32_t to, bytes;
  const uint8_t* from;
  std::vector<uint8_t> early;  // what was at `from` when it began, for those that read at once
  int64_t barrier;             // whose bytes it is; -1 - i: one arrival at barrier i (of a lane whose copies are done)
  Lane* lane;
  bool operator<(const Copy& other) const { return due != other.due ? due > other.due : order > other.order; }
};

struct Machine {
  std::vector<Block> blocks;
  std::vector<Warp*> ready, polling;
  std::vector<Copy> copies;  // a heap
  uint32_t shared_bytes, threads, delay;
  uint64_t turn = 0, events = 0, order = 0, random = 1;
  Lane* lane = nullptr;  // that runs now
  Context scheduler;
  std::string failure;
  sigjmp_buf broken;
};
static Machine* machine = nullptr;
static Lane* current = nullptr;

inline uint32_t random_below(uint32_t n) {
  uint64_t& x = machine->random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return (uint32_t)((x >> 16) % n);
}

inline void say(std::string& to, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline void say(std::string& to, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  to += text;
}

inline void wake(Warp* warp) {
  if (warp->queued) return;
  warp->queued = true;
  machine->ready.push_back(warp);
}

// Ends the launch from inside a lane. Never returns to it.
[[noreturn]] inline void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] inline void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (current)
    say(machine->failure, "block %u warp %u lane %u: ", current->warp->block->index, current->warp->index, current->lane);
  machine->failure += text;
  if (!current) siglongjmp(machine->broken, 1);  // a copy that arrives
  Lane* lane = current;
  switch_to(lane->context, machine->scheduler);
  __builtin_unreachable();
}

inline void wait(State state) {
  Lane* lane = current;
  lane->state = state;
  if (state == POLL && !lane->warp->polling) {
    lane->warp->polling = true;
    machine->polling.push_back(lane->warp);
  }
  switch_to(lane->context, machine->scheduler);
}

// ---- collectives: the last lane to arrive does the work of all

struct Collective {
  Warp* warp;
  template <class T> T& of(uint32_t lane) const { return *(T*)warp->lanes[lane].arguments; }
};

// `work(Collective)` reads and writes the arguments of all lanes. `line`: from where it is called, must be one for all.
template <class T, class F> inline void collective(const char* name, int line, T& arguments, F work) {
  Lane* lane = current;
  Warp* warp = lane->warp;
  lane->doing = name;
  lane->line = line;
  lane->arguments = &arguments;
  if (warp->done)
    fail("%s in line %d of a warp of which %u lanes have ended", name, line, warp->done);
  if (!warp->in_collective) {
    warp->first = lane->lane;
  } else {
    Lane& other = warp->lanes[warp->first];
    if ((other.doing != name && strcmp(other.doing, name) != 0) || other.line != line)
      fail("%s (line %d) while lane %u is in %s (line %d)", name, line, other.lane, other.doing, other.line);
  }
  if (++warp->in_collective < 32) return wait(COLLECTIVE);
  warp->in_collective = 0;
  work(Collective{warp});
  for (uint32_t i = 0; i < 32; i++)
    if (&warp->lanes[i] != lane) warp->lanes[i].state = READY;
  wake(warp);
}

// ---- barriers of threads

inline void sync_named(uint32_t id, uint32_t threads) {
  Lane* lane = current;
  Block* block = lane->warp->block;
  if (id >= 16) fail("barrier %u: there are 16", id);
  if (!threads || threads % 32 || threads > machine->threads) fail("barrier %u of %u threads", id, threads);
  NamedBarrier& named = block->named[id];
  if (named.arrived && named.expected != threads)
    fail("barrier %u of %u threads, but others wait there for %u", id, threads, named.expected);
  named.expected = threads;
  named.lanes[lane->warp->index] |= 1u << lane->lane;
  lane->on = id;
  if (++named.arrived < threads) return wait(SYNC);
  for (Warp& warp : block->warps) {
    uint32_t lanes = named.lanes[warp.index];
    if (lanes && lanes != ~0u) fail("barrier %u: of warp %u only lanes %08x have come", id, warp.index, lanes);
    named.lanes[warp.index] = 0;
    if (!lanes) continue;
    for (uint32_t i = 0; i < 32; i++)
      if (&warp.lanes[i] != lane) warp.lanes[i].state = READY;
    wake(&warp);
  }
  named.arrived = 0;
}

// ---- mbarriers

inline uint32_t shared_at(Block* block, const void* p, uint32_t bytes, uint32_t alignment, const char* what) {
  uint64_t at = (uint64_t)((const uint8_t*)p - block->shared);
  if (at + bytes > machine->shared_bytes)
    fail("%s at byte %lld of %u of shared memory", what, (long long)at, machine->shared_bytes);
  if (at % alignment) fail("%s at byte %llu of shared memory: not a multiple of %u", what, (unsigned long long)at, alignment);
  return (uint32_t)at;
}

inline uint32_t barrier_index(const void* p) {
  Block* block = current->warp->block;
  uint32_t at = shared_at(block, p, 8, 8, "an mbarrier");
  uint64_t word;
  memcpy(&word, p, 8);
  uint32_t index = (uint32_t)word;
  if (word - index != MAGIC || index >= block->barriers.size() || block->barriers[index].at != at)
    fail("the mbarrier at byte %u isn't initialised, or something has been written over it (%016llx)", at,
         (unsigned long long)word);
  return index;
}

inline void new_barrier(void* p, uint32_t arrivals) {
  Block* block = current->warp->block;
  uint32_t at = shared_at(block, p, 8, 8, "an mbarrier");
  if (!arrivals) fail("an mbarrier of no arrivals");
  for (Barrier& other : block->barriers)
    if (other.at == at) fail("the mbarrier at byte %u is initialised twice", at);
  uint64_t word = MAGIC + block->barriers.size();
  memcpy(p, &word, 8);
  block->barriers.push_back({at, arrivals, arrivals, 0, 0});
}

// Something happened that a polling lane may be waiting for.
inline void event() {
  machine->events++;
  for (Warp* warp : machine->polling) wake(warp);
  machine->polling.clear();
}

inline void check_phase(Block* block, uint32_t index) {
  Barrier& barrier = block->barriers[index];
  if (barrier.pending || barrier.bytes) return;
  barrier.parity ^= 1;
  barrier.pending = barrier.arrivals;
  for (Warp& warp : block->warps)
    for (uint32_t i = 0; i < 32; i++) {
      Lane& lane = warp.lanes[i];
      if (lane.state == BARRIER && lane.on == index) {
        lane.state = READY;
        wake(&warp);
      }
    }
  event();
}

inline void announce(Block* block, uint32_t index, uint32_t bytes) { block->barriers[index].bytes += bytes; }
inline void arrive(Block* block, uint32_t index) {
  Barrier& barrier = block->barriers[index];
  if (!barrier.pending) fail("more arrivals at the mbarrier at byte %u than the %u of a phase", barrier.at, barrier.arrivals);
  barrier.pending--;
  check_phase(block, index);
}

// Whether the phase with this parity is over.
inline bool is_over(uint32_t index, uint32_t parity) {
  return current->warp->block->barriers[index].parity != (parity & 1);
}

// ---- copies

inline void arrive_copy(Copy& copy) {
  copy.block->copies--;
  if (copy.lane) copy.lane->copies--;
  if (copy.barrier < 0) return arrive(copy.block, (uint32_t)(-1 - copy.barrier));
  memcpy(copy.block->shared + copy.to, copy.early.empty() ? copy.from : copy.early.data(), copy.bytes);
  if (copy.lane) return;
  copy.block->barriers[copy.barrier].bytes -= copy.bytes;
  check_phase(copy.block, (uint32_t)copy.barrier);
}

inline void push_copy(Copy copy) {
  uint32_t delay = machine->delay;
  copy.order = machine->order++;
  copy.block->copies++;
  if (copy.lane) copy.lane->copies++;
  if (!delay) return arrive_copy(copy);
  copy.due = machine->turn + 1 + random_below(random_below(4) ? 1 + delay / 8 : delay);
  machine->copies.push_back(std::move(copy));
  std::push_heap(machine->copies.begin(), machine->copies.end());
}

// A copy to shared memory. Between its beginning and its end nobody may look there: it is full of nonsense.
// `own`: a copy of the lane's own (before sm_90), which tells no barrier.
inline void begin_copy(void* to, const void* from, uint32_t bytes, int64_t barrier, bool own) {
  Block* block = current->warp->block;
  uint32_t at = shared_at(block, to, bytes, 16, "a copy");
  if ((uintptr_t)from % 16 || bytes % 16 || !bytes) fail("a copy of %u bytes from %p: not multiples of 16", bytes, from);
  Copy copy = {0, 0, block, at, bytes, (const uint8_t*)from, {}, barrier, own ? current : nullptr};
  volatile uint8_t readable = copy.from[bytes - 1];  // is there memory? Tell the one who began it
  (void)readable;
  if (machine->delay) {
    if (random_below(2)) copy.early.assign(copy.from, copy.from + bytes);
    memset(to, 0xcd, bytes);
  }
  push_copy(std::move(copy));
}

// Once all copies that the lane has begun are there, it arrives at the barrier.
inline void arrive_behind_copies(uint32_t barrier) {
  Lane* lane = current;
  uint64_t last = 0;
  for (Copy& copy : machine->copies)
    if (copy.lane == lane) last = std::max(last, copy.due);
  Copy arrival = {last, machine->order++, lane->warp->block, 0, 0, nullptr, {}, -1 - (int64_t)barrier, nullptr};
  arrival.block->copies++;
  if (!last) return arrive_copy(arrival);
  machine->copies.push_back(std::move(arrival));
  std::push_heap(machine->copies.begin(), machine->copies.end());
}

// ---- turns

inline void run_lane(Lane* lane) {
  current = lane;
  switch_to(machine->scheduler, lane->context);
  current = nullptr;
}

// One turn of a warp: passes over its lanes, in a random order, until none can run or it is another's turn.
inline void run_warp(Warp* warp) {
  uint32_t passes = 1 + random_below(16);
  bool more = true;
  while (more && passes--) {
    more = false;
    uint32_t first = random_below(32), step = random_below(2) ? 1 : 31;
    for (uint32_t i = 0; i < 32; i++) {
      Lane& lane = warp->lanes[(first + i * step) & 31];
      if (lane.state != READY) continue;
      run_lane(&lane);
      if (!machine->failure.empty()) return;
    }
    for (uint32_t i = 0; i < 32; i++) more |= warp->lanes[i].state == READY;
  }
  if (more) wake(warp);
}

inline void describe(std::string& to, const Lane& lane) {
  switch (lane.state) {
    case COLLECTIVE: say(to, "in %s (line %d)", lane.doing, lane.line); break;
    case SYNC: {
      const NamedBarrier& named = lane.warp->block->named[lane.on];
      say(to, "wait at barrier %u: %u of %u threads are there", lane.on, named.arrived, named.expected);
      break;
    }
    case BARRIER: {
      const Barrier& b = lane.warp->block->barriers[lane.on];
      say(to, "wait (where = %u) for phase %u of the mbarrier at byte %u, which lacks %u of %u arrivals and %lld bytes",
          lane.where, lane.parity, b.at, b.pending, b.arrivals, (long long)b.bytes);
      break;
    }
    case POLL: say(to, "poll (where = %u)", lane.where); break;
    case DONE: say(to, "have ended"); break;
    case READY: say(to, "can run"); break;
  }
}

// What every warp waits for, blocks that wait for the same thing together.
inline std::string standing() {
  std::map<std::string, std::vector<uint32_t>> blocks_by_text;
  std::vector<std::string> order;
  for (Block& block : machine->blocks) {
    std::string text;
    for (Warp& warp : block.warps) {
      std::map<std::string, uint32_t> lanes;
      for (uint32_t i = 0; i < 32; i++) {
        std::string one;
        describe(one, warp.lanes[i]);
        lanes[one] |= 1u << i;
      }
      for (auto& [what, mask] : lanes) {
        if (mask == ~0u) say(text, "\n  warp %u: %s", warp.index, what.c_str());
        else say(text, "\n  warp %u lanes %08x: %s", warp.index, mask, what.c_str());
      }
    }
    if (!blocks_by_text.count(text)) order.push_back(text);
    blocks_by_text[text].push_back(block.index);
  }
  std::string found;
  for (std::string& text : order) {
    found += "\nblock";
    for (uint32_t block : blocks_by_text[text]) say(found, " %u", block);
    found += ":" + text;
  }
  return found;
}

// Runs until every lane has ended or something fails.
inline void run_machine() {
  uint64_t woken = ~0ull;  // events when all polling lanes were last woken
  while (machine->failure.empty()) {
    while (!machine->copies.empty() && (machine->copies.front().due <= machine->turn || machine->ready.empty())) {
      std::pop_heap(machine->copies.begin(), machine->copies.end());
      Copy copy = std::move(machine->copies.back());
      machine->copies.pop_back();
      machine->turn = std::max(machine->turn, copy.due);
      arrive_copy(copy);
    }
    if (machine->ready.empty()) {
      bool ended = true;
      for (Block& block : machine->blocks)
        for (Lane& lane : block.lanes) ended &= lane.state == DONE;
      if (ended) return;
      if (machine->polling.empty() || woken == machine->events) {
        machine->failure = "deadlock: nothing that anybody waits for can happen" + standing();
        return;
      }
      woken = machine->events;
      event();
      machine->events = woken;
      continue;
    }
    uint32_t choice = random_below((uint32_t)machine->ready.size());
    Warp* warp = machine->ready[choice];
    machine->ready[choice] = machine->ready.back();
    machine->ready.pop_back();
    warp->queued = warp->polling = false;
    for (uint32_t i = 0; i < 32; i++)
      if (warp->lanes[i].state == POLL) warp->lanes[i].state = READY;
    machine->turn++;
    run_warp(warp);
  }
}

}  // namespace emulator
