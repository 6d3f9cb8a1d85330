// Mean and sum of squared deviations of a row, in the steps of torch's kernels for rows (moments_utils.h), with equal
// rounding, overflows and NaNs. Each lane of a vector corrects its mean element by element; 16 vectors are a chunk,
// chunks are added in pairs, and lanes at the end. Torch's layer norm has vectors of 32 bytes on every x86 processor.
#pragma once
#include "vecmath.h"

#if defined(__aarch64__)
#define BYTES_OF_LANES 16
#else
#define BYTES_OF_LANES 32
#endif
#define METHOD inline __attribute__((always_inline))

// How torch reads elements of type T: half types two vectors at once. The last elements, which fill no vector, are
// scalar code; for float16 the compiler of torch's library has fused its multiplications and additions.
template <class T> struct Elements {
  typedef T real;
  static constexpr int vectors = 1;
  static constexpr bool fused = false;
};
template <> struct Elements<bfloat16> {
  typedef float real;
  static constexpr int vectors = 2;
  static constexpr bool fused = false;
};
template <> struct Elements<half> {
  typedef float real;
  static constexpr int vectors = 2;
  static constexpr bool fused = true;
};

template <class T> struct Moments {
  typedef typename Elements<T>::real real;
  static constexpr int vectors = Elements<T>::vectors, lanes = BYTES_OF_LANES / sizeof(real), width = lanes * vectors;
  static constexpr int steps = 16, chunk = steps * width, at_once = 8;
  typedef real Lanes __attribute__((vector_size(BYTES_OF_LANES)));
  struct Part {
    int64_t count;
    Lanes mean, squares;
  };

  static constexpr real one = 1;
  static constexpr real shares[steps] = {one,      one / 2,  one / 3,  one / 4,  one / 5,  one / 6,  one / 7,  one / 8,
                                         one / 9,  one / 10, one / 11, one / 12, one / 13, one / 14, one / 15, one / 16};

  int64_t size, chunks = 0;
  int levels = 0;
  Part parts[64];
  real mean = 0, squares = 0;

  METHOD explicit Moments(int64_t size) : size(size) {
    int64_t all = (size / width + steps - 1) / steps;
    while (((int64_t)1 << levels) < all) levels++;
    for (int k = 0; k < levels || k == 0; k++) parts[k] = Part{};
  }

  METHOD static Lanes fused(Lanes a, Lanes b, Lanes c) {
    for (int k = 0; k < lanes; k++) c[k] = fast_fma(a[k], b[k], c[k]);
    return c;
  }
  METHOD static Lanes every(real x) { return x - Lanes{}; }

  METHOD static void join(Part& to, int64_t count, Lanes mean, Lanes squares) {
    int64_t total = to.count + count;
    Lanes share = every(total == 0 ? (real)0 : (real)count / (real)total), delta = mean - to.mean;
    Lanes moved = share * delta;
    to.squares = fused(delta * every((real)to.count), moved, to.squares + squares);
    to.mean = to.mean + moved;
    to.count = total;
  }

  static METHOD void join(Part& to, const Part& part) { join(to, part.count, part.mean, part.squares); }

  // Adds `number` chunks of `count` steps: pairs, pairs of pairs, and so on.
  template <int number> static METHOD void join_pairs(Part& to, const Lanes* means, const Lanes* sums, int count) {
    if constexpr (number == 1) {
      for (int k = 0; k < vectors; k++) join(to, count, means[k], sums[k]);
    } else {
      Part pair = {};
      join_pairs<number / 2>(pair, means, sums, count);
      join_pairs<number / 2>(pair, means + number / 2 * vectors, sums + number / 2 * vectors, count);
      join(to, pair);
    }
  }

  // Takes `number` chunks of `count` steps, interleaved; the number of earlier chunks is a multiple of `number`.
  template <int number> METHOD void take(const real* x, int count) {
    Lanes means[number * vectors] = {}, sums[number * vectors] = {};
    // No processor predicts reads that alternate between chunks, so prefetch in memory order first.
    if (number > 1)
      for (int k = 0; k < number * chunk; k += 64 / (int)sizeof(real)) __builtin_prefetch(x + k);
    for (int step = 0; step < count; step++) {
      Lanes share = every(shares[step]);
#pragma GCC unroll 8
      for (int k = 0; k < number * vectors; k++) {
        Lanes value;
        __builtin_memcpy(&value, x + k / vectors * chunk + k % vectors * lanes + step * width, sizeof value);
        Lanes delta = value - means[k];
        means[k] = fused(share, delta, means[k]);
        sums[k] = fused(delta, value - means[k], sums[k]);
      }
    }
    constexpr int level = number == 8 ? 2 : number == 4 ? 1 : 0, half = number == 1 ? 1 : number / 2;
    for (int k = 0; k < number; k += half) join_pairs<half>(parts[level], means + k * vectors, sums + k * vectors, count);
    chunks += number;
    int64_t done = chunks >> level;
    for (int k = level; k + 1 < levels && (done & 1) == 0; k++, done >>= 1) {
      join(parts[k + 1], parts[k]);
      parts[k] = Part{};
    }
  }

  // Takes the next `count` elements of the row; all blocks but the last are multiples of `at_once` vectors of steps.
  METHOD void add(const real* x, int64_t count) {
    constexpr int most = at_once / vectors;
    for (; count >= most * chunk; x += most * chunk, count -= most * chunk) take<most>(x, steps);
    if (most > 4 && count >= 4 * chunk) take<4>(x, steps), x += 4 * chunk, count -= 4 * chunk;
    if (count >= 2 * chunk) take<2>(x, steps), x += 2 * chunk, count -= 2 * chunk;
    if (count >= chunk) take<1>(x, steps), x += chunk, count -= chunk;
    if (count >= width) {
      int rest = (int)(count / width);
      take<1>(x, rest);
      x += rest * width, count -= rest * width;
    }
    for (int64_t k = 0; k < count; k++) {
      real delta = x[k] - mean;
      mean += delta / (real)(k + 1);
      real product = delta * (x[k] - mean);
      squares = Elements<T>::fused ? fast_fma(delta, x[k] - mean, squares) : squares + product;
    }
  }

  // After the last element: adds the lanes to `mean` and `squares`.
  METHOD void end() {
    for (int k = 1; k < levels; k++) join(parts[0], parts[k]);
    real count = (real)(size / width * vectors), before = (real)(size % width);
    for (int k = 0; k < lanes; k++) {
      real total = before + count, share = total == 0 ? (real)0 : count / total;
      real delta = parts[0].mean[k] - mean;
      mean = fast_fma(share, delta, mean);
      squares += fast_fma(delta * delta * share, before, parts[0].squares[k]);
      before = total;
    }
  }
};
