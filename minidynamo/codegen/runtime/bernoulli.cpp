// Draws what torch draws for dropout on a CPU, from the state of torch's own generator, many numbers at a time.
//
// The generator is MT19937 (M. Matsumoto and T. Nishimura, ACM TOMACS 8(1), 1998). An element takes two words, of which
// 53 bits are compared with the probability. `random_numbers.py` tries out whether that is so before it relies on it.
#include "launch.h"

constexpr int WORDS = 624, SHIFT = 397;

// How torch writes the state of its generator down.
struct Written {
  uint64_t seed;
  int32_t left, seeded;
  uint64_t next, words[WORDS];
};

INLINE uint32_t twist(uint32_t a, uint32_t b) {
  return (((a & 0x80000000u) | (b & 0x7fffffffu)) >> 1) ^ (b & 1 ? 0x9908b0dfu : 0u);
}

// The next 624 words. Each depends on itself, on the word behind it, and on one that is far enough away.
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

static void draw(float* out, int64_t count, uint64_t limit, Written* state) {
  uint32_t words[WORDS];
  alignas(64) uint32_t drawn[WORDS + 2];
  for (int k = 0; k < WORDS; k++) words[k] = (uint32_t)state->words[k];
  int next = (int)state->next, left = state->left - 1, waiting = 0;
  while (count > 0) {
    if (left == 0) {
      renew(words);
      next = 0, left = WORDS;
    }
    int64_t wanted = 2 * count - waiting;
    int taken = wanted < left ? (int)wanted : left;
    for (int k = 0; k < taken; k++) drawn[waiting + k] = tempered(words[next + k]);
    next += taken, left -= taken, waiting += taken;
    int pairs = waiting / 2;
#pragma omp simd
    for (int k = 0; k < pairs; k++) {
      uint64_t bits = (uint64_t)drawn[2 * k] << 32 | drawn[2 * k + 1];
      out[k] = (bits & 0x1fffffffffffff) < limit ? 1.f : 0.f;
    }
    out += pairs, count -= pairs;
    drawn[0] = drawn[2 * pairs];
    waiting -= 2 * pairs;
  }
  for (int k = 0; k < WORDS; k++) state->words[k] = words[k];
  state->next = (uint64_t)next, state->left = left + 1;
}

// Takes the addresses of floats and of a written state, the number of floats, and the probability in units of 2^-53.
ENTRY(bernoulli) {
  draw(address<float>(args[0]), integer(args[2]), (uint64_t)integer(args[3]), address<Written>(args[1]));
  return none();
}
