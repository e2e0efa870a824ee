// Contexts that run on stacks of their own and switch to each other: a GPU's threads on one thread of a CPU.

#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr size_t STACK_BYTES = 64 * 1024;  // the lowest page of each is closed

#if defined(__x86_64__)

struct Context {
  void* stack = nullptr;
};
extern "C" __attribute__((visibility("hidden"))) void emulator_switch(void** from, void* to);
asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, . - emulator_switch
)");

// `run` never returns. shift: bytes, a multiple of 16, that the stack begins lower: different ones for neighbours, which
// would otherwise all want the same lines of the processor's cache.
inline void begin(Context& context, uint8_t* stack, size_t shift, void (*run)()) {
  void** top = (void**)(stack + STACK_BYTES - shift) - 2;
  *top = (void*)run;  // where the first switch returns to, with the stack as after a call
  context.stack = top - 6;
}
inline void switch_to(Context& from, Context& to) { emulator_switch(&from.stack, to.stack); }

#else
}
#include <ucontext.h>
namespace emulator {

struct Context {
  ucontext_t context;
};
inline void begin(Context& context, uint8_t* stack, size_t, void (*run)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack;
  context.context.uc_stack.ss_size = STACK_BYTES;
  context.context.uc_link = nullptr;
  makecontext(&context.context, run, 0);
}
inline void switch_to(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

#endif

// Memory that ends where closed memory begins; closed memory lies before it too. Null when there is none.
inline uint8_t* guarded(size_t bytes, size_t alignment) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t room = (bytes + alignment + page - 1) / page * page;
  uint8_t* base = (uint8_t*)mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  mprotect(base + page, room, PROT_READ | PROT_WRITE);
  uintptr_t end = (uintptr_t)(base + page + room);
  return (uint8_t*)((end - bytes) / alignment * alignment);
}

// Stacks for `count` contexts, one after another; they are used again by later launches.
inline uint8_t* stacks(size_t count) {
  static uint8_t* memory = nullptr;
  static size_t have = 0;
  if (count > have) {
    if (memory) munmap(memory, have * STACK_BYTES);
    have = 0;
    memory = (uint8_t*)mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return memory = nullptr;
    for (size_t i = 0; i < count; i++) mprotect(memory + i * STACK_BYTES, 4096, PROT_NONE);
    have = count;
  }
  return memory;
}

}  // namespace emulator
