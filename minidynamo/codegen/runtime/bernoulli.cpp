// Draws the same numbers as torch for dropout on a CPU, from torch's own generator and under its lock, many at a time.
//
// The generator is MT19937 (M. Matsumoto and T. Nishimura, ACM TOMACS 8(1), 1998). An element takes two words, of which
// 53 bits are compared with the probability. `random_numbers.py` checks these facts before it uses this code.
#include "launch.h"

constexpr int WORDS = 624, SHIFT = 397;

// The engine inside torch's generator. Before it in memory is the lock that every draw takes.
struct Engine {
  uint64_t seed;
  int32_t left;
  bool seeded;
  uint32_t next, words[WORDS];
};
struct Mutex;
extern "C" int pthread_mutex_lock(Mutex*);
extern "C" int pthread_mutex_unlock(Mutex*);

struct Lock {
  Mutex* mutex;
  explicit Lock(Mutex* mutex) : mutex(mutex) { pthread_mutex_lock(mutex); }
  ~Lock() { pthread_mutex_unlock(mutex); }
};

INLINE uint32_t twist(uint32_t a, uint32_t b) {
  return (((a & 0x80000000u) | (b & 0x7fffffffu)) >> 1) ^ (b & 1 ? 0x9908b0dfu : 0u);
}

// Computes the next 624 words. Each depends on itself, on the word after it, and on a word that is far enough away.
static void renew(uint32_t* words) {
#pragma omp simd
  for (int k = 0; k < WORDS - SHIFT; k++) words[k] = words[k + SHIFT] ^ twist(words[k], words[k + 1]);
#pragma omp simd safelen(64)
  for (int k = WORDS - SHIFT; k < WORDS - 1; k++) words[k] = words[k + SHIFT - WORDS] ^ twist(words[k], words[k + 1]);
  words[WORDS - 1] = words[SHIFT - 1] ^ twist(words[WORDS - 1], words[0]);
}

INLINE uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

template <class T>
static void draw(T* out, int64_t count, uint64_t limit, Engine& engine) {
  alignas(64) uint32_t drawn[WORDS + 2];
  int next = (int)engine.next, left = engine.left - 1, waiting = 0;
  while (count > 0) {
    if (left == 0) {
      renew(engine.words);
      next = 0, left = WORDS;
    }
    int64_t wanted = 2 * count - waiting;
    int taken = wanted < left ? (int)wanted : left;
    for (int k = 0; k < taken; k++) drawn[waiting + k] = tempered(engine.words[next + k]);
    next += taken, left -= taken, waiting += taken;
    int pairs = waiting / 2;
#pragma omp simd
    for (int k = 0; k < pairs; k++) {
      uint64_t bits = (uint64_t)drawn[2 * k] << 32 | drawn[2 * k + 1];
      out[k] = (bits & 0x1fffffffffffff) < limit ? T(1) : T(0);
    }
    out += pairs, count -= pairs;
    drawn[0] = drawn[2 * pairs];
    waiting -= 2 * pairs;
  }
  engine.next = (uint32_t)next, engine.left = left + 1;
}

// Arguments: address of floats or bytes, number of elements, probability in units of 2^-53, address of the generator,
// address of its lock, torch's functions that read and write its engine, bytes of an element.
ENTRY(bernoulli) {
  int64_t count = integer(args[1]), limit = integer(args[2]);
  auto* generator = address<void>(args[3]);
  auto* mutex = address<Mutex>(args[4]);
  auto read = (Engine(*)(void*))address<void>(args[5]);
  auto write = (void (*)(void*, Engine))address<void>(args[6]);
  if (PyErr_Occurred()) return nullptr;
  {
    WithoutGil others_run;  // released first, reacquired last: a thread that waits for the lock may hold the GIL
    Lock lock(mutex);
    Engine engine = read(generator);
    if (integer(args[7]) == 1)
      draw(address<uint8_t>(args[0]), count, (uint64_t)limit, engine);
    else
      draw(address<float>(args[0]), count, (uint64_t)limit, engine);
    write(generator, engine);
  }
  return none();
}
