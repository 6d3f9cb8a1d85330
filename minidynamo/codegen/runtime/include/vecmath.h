// The arithmetic of kernels: conversions, integer division, and elementary functions that inline into vector loops.
//
// Functions on float are written without branches, so that a loop that calls them vectorizes; they are within 2 ulp of
// the correctly rounded value, infinities, NaN and subnormal numbers included (tests/codegen/runtime/test_vecmath.py).
// Other functions call the C library in the same precision. Coefficients are minimax fits for the named intervals.
#pragma once
#include "launch.h"

#define INF __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")

template <class To, class From> INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

// a * b + c; rounded once where the machine can do so as fast
INLINE float fast_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
INLINE double fast_fma(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// c0 + c1 x + c2 x^2 + ...
template <class T> INLINE T polynomial(T, T c) { return c; }
template <class T, class... Rest> INLINE T polynomial(T x, T c, Rest... rest) {
  return fast_fma(polynomial(x, (T)rest...), x, c);
}

// ---- half types: stored as 16 bits, computed in float ----
enum class half : uint16_t {};
enum class bfloat16 : uint16_t {};

INLINE float to_float(bfloat16 x) { return bits_as<float>((uint32_t)x << 16); }

INLINE bfloat16 to_bfloat16(float x) {
  uint32_t bits = bits_as<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bfloat16)(uint16_t)(x != x ? 0x7fc0 : rounded);
}

INLINE float to_float(half x) {
  uint32_t sign = ((uint32_t)x & 0x8000) << 16, magnitude = (uint32_t)x & 0x7fff;
  // Moving the exponent by a multiplication also normalizes subnormal halves.
  uint32_t finite = bits_as<uint32_t>(bits_as<float>(magnitude << 13) * 0x1p112f);
  uint32_t special = 0x7f800000 | magnitude << 13;
  return bits_as<float>(sign | (magnitude >= 0x7c00 ? special : finite));
}

INLINE half to_half(float x) {
  uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  // Adding 1/2 leaves the value in units of 2^-24, rounded, in the low bits.
  uint32_t tiny = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < 0x38800000 ? tiny : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;
  result = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : result;
  return (half)(uint16_t)(sign | result);
}

// Zero, unknown to the compiler. Otherwise it would replace a conversion to an integer and back by a rounding to zero,
// which keeps large numbers and the sign of zero.
EXPORT int minidynamo_zero;
#if PART == 0
int minidynamo_zero = 0;
#endif

// ---- bools: stored as bytes, computed as conditions ----
enum class boolean : uint8_t {};
// Compared as 32 bits, the width of most selected values: conditions of bytes would need 64 elements for a vector.
INLINE bool is_true(boolean x) { return ((uint32_t)(uint8_t)x ^ (uint32_t)minidynamo_zero) != 0; }

// x, unknown to the compiler: otherwise it would convert NaN to 0 and infinity to the largest integer.
template <class T> INLINE T unknown(T x) { return x; }
INLINE float unknown(float x) { return bits_as<float>(bits_as<uint32_t>(x) ^ (uint32_t)minidynamo_zero); }
INLINE double unknown(double x) { return bits_as<double>(bits_as<uint64_t>(x) ^ (uint64_t)minidynamo_zero); }

// cast<To>(x): torch's conversion; anything to bool compares with zero. A float beyond the range of an integer type is
// converted as the processor does in the wider type that torch uses in between.
template <class To> struct Cast {
  template <class From> INLINE To from(From x) {
    constexpr bool to_integer = (To)0.5 == 0, from_float = (From)0.5 != 0, is_unsigned = (To)-1 > 0;
    if constexpr ((From)2 == (From)1) return x ? (To)1 : (To)0;  // selects between vectors, without converting `x`
    else if constexpr (!to_integer || !from_float) return (To)x;
    else if constexpr (sizeof(To) == 8 || (is_unsigned && sizeof(From) == 8))
      return (To)((int64_t)unknown(x) ^ minidynamo_zero);
    else return (To)((int32_t)unknown(x) ^ minidynamo_zero);
  }
  INLINE To from(half x) { return from(to_float(x)); }
  INLINE To from(bfloat16 x) { return from(to_float(x)); }
};
template <> struct Cast<bool> {
  template <class From> INLINE bool from(From x) { return x != 0; }
  INLINE bool from(half x) { return ((uint16_t)x & 0x7fff) != 0; }
  INLINE bool from(bfloat16 x) { return ((uint16_t)x & 0x7fff) != 0; }
};
template <> struct Cast<half> {
  template <class From> INLINE half from(From x) { return to_half((float)x); }
  INLINE half from(half x) { return x; }
  INLINE half from(bfloat16 x) { return to_half(to_float(x)); }
};
template <> struct Cast<bfloat16> {
  template <class From> INLINE bfloat16 from(From x) { return to_bfloat16((float)x); }
  INLINE bfloat16 from(half x) { return to_bfloat16(to_float(x)); }
  INLINE bfloat16 from(bfloat16 x) { return x; }
};
template <class To, class From> INLINE To cast(From x) { return Cast<To>::from(x); }

// ---- order ----
template <class T> INLINE T choose(bool condition, T a, T b) { return condition ? a : b; }
template <class T> INLINE T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> INLINE T minimum(T a, T b) { return a < b || a != a ? a : b; }
template <class T> INLINE T sign_of(T x) { return (T)((x > 0) - (x < 0)); }
template <class T> INLINE T absolute(T x) { return x < 0 ? (T)-x : x; }
INLINE float absolute(float x) { return __builtin_fabsf(x); }
INLINE double absolute(double x) { return __builtin_fabs(x); }

// Does `value` replace `best` in an argmax (argmin)? The first of equal values stays, and so does the first NaN.
template <class T> INLINE bool exceeds(T value, T best) { return value > best || (value != value && best == best); }
template <class T> INLINE bool undercuts(T value, T best) { return value < best || (value != value && best == best); }

// A fold over a vector loop needs its function and the value that it starts from.
template <class T> struct Limits;
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define REDUCTIONS(T, lowest, highest)                                                                             \
  template <> struct Limits<T> {                                                                                   \
    static constexpr T low = lowest, high = highest;                                                               \
  };                                                                                                               \
  PRAGMA(omp declare reduction(maximum : T : omp_out = maximum(omp_out, omp_in)) initializer(omp_priv = lowest)) \
  PRAGMA(omp declare reduction(minimum : T : omp_out = minimum(omp_out, omp_in)) initializer(omp_priv = highest))
REDUCTIONS(float, -INF, INF)
REDUCTIONS(double, -(double)INF, (double)INF)
REDUCTIONS(int8_t, -128, 127)
REDUCTIONS(int16_t, -32768, 32767)
REDUCTIONS(int32_t, -2147483647 - 1, 2147483647)
REDUCTIONS(int64_t, -9223372036854775807ll - 1, 9223372036854775807ll)
REDUCTIONS(uint8_t, 0, 255)

// ---- integers: an error of torch is recorded in `failed` and raised after the kernel ----
template <class T> INLINE T floordiv(T a, T b, Failure& failed) {
  if (b == 0) return failed.reason = DIVISION_BY_ZERO, (T)0;
  if (b == (T)-1 && (T)-1 < 0) return (T)-a;
  T quotient = (T)(a / b);
  return (T)(quotient - (a % b != 0 && (a < 0) != (b < 0)));
}
template <class T> INLINE T truncdiv(T a, T b, Failure& failed) {
  if (b == 0) return failed.reason = DIVISION_BY_ZERO, (T)0;
  return b == (T)-1 && (T)-1 < 0 ? (T)-a : (T)(a / b);
}
template <class T> INLINE T fmod_int(T a, T b, Failure& failed) {
  if (b == 0) return failed.reason = DIVISION_BY_ZERO, (T)0;
  return b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b);
}
template <class T> INLINE T remainder_int(T a, T b, Failure& failed) {
  T rest = fmod_int(a, b, failed);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
template <class T> INLINE T shift_left(T a, T by) {
  return by < 0 || by >= (T)(8 * sizeof(T)) ? (T)0 : (T)((uint64_t)a << by);
}
template <class T> INLINE T shift_right(T a, T by) {
  T widest = (T)(8 * sizeof(T) - ((T)-1 < 0));  // bits besides the sign
  return (T)(a >> (by < 0 || by > widest ? widest : by));
}
template <class T> INLINE T power_int(T base, T exponent) {
  if (exponent < 0) return (T)(base == 1 ? 1 : base == (T)-1 ? (exponent % 2 ? -1 : 1) : 0);
  T result = 1;
  for (; exponent; exponent = (T)(exponent >> 1)) {
    if (exponent & 1) result = (T)(result * base);
    base = (T)(base * base);
  }
  return result;
}
INLINE int64_t check_index(int64_t index, int64_t size, Failure& failed, int reason, int64_t dimension = 0) {
  if (index >= 0 && index < size) return index;
  if (!failed.reason) failed = {reason, index, dimension, size};
  return 0;
}

// ---- double, and rare functions of float: the C library ----
#define FROM_LIBRARY(name)                                            \
  INLINE float m_##name(float x) { return __builtin_##name##f(x); }  \
  INLINE double m_##name(double x) { return __builtin_##name(x); }
#define DOUBLE_FROM_LIBRARY(name) \
  INLINE double m_##name(double x) { return __builtin_##name(x); }
#define FROM_LIBRARY_2(name)                                                       \
  INLINE float m_##name(float x, float y) { return __builtin_##name##f(x, y); }   \
  INLINE double m_##name(double x, double y) { return __builtin_##name(x, y); }
FROM_LIBRARY(sqrt)
FROM_LIBRARY(floor)
FROM_LIBRARY(ceil)
FROM_LIBRARY(trunc)
FROM_LIBRARY(rint)
FROM_LIBRARY(asin)
FROM_LIBRARY(acos)
FROM_LIBRARY(atan)
FROM_LIBRARY(sinh)
FROM_LIBRARY(cosh)
FROM_LIBRARY(asinh)
FROM_LIBRARY(acosh)
FROM_LIBRARY(atanh)
FROM_LIBRARY(erfc)
FROM_LIBRARY(lgamma)
FROM_LIBRARY_2(atan2)
FROM_LIBRARY_2(hypot)
FROM_LIBRARY_2(copysign)
FROM_LIBRARY_2(fmod)
DOUBLE_FROM_LIBRARY(exp)
DOUBLE_FROM_LIBRARY(exp2)
DOUBLE_FROM_LIBRARY(expm1)
DOUBLE_FROM_LIBRARY(log)
DOUBLE_FROM_LIBRARY(log2)
DOUBLE_FROM_LIBRARY(log10)
DOUBLE_FROM_LIBRARY(log1p)
DOUBLE_FROM_LIBRARY(sin)
DOUBLE_FROM_LIBRARY(cos)
DOUBLE_FROM_LIBRARY(tan)
DOUBLE_FROM_LIBRARY(tanh)
DOUBLE_FROM_LIBRARY(erf)
INLINE double m_sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
INLINE double m_pow(double x, double y) { return __builtin_pow(x, y); }
INLINE float m_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double m_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Division that rounds the quotient down, and the remainder that goes with it (sign of the divisor).
template <class T> INLINE T m_remainder(T a, T b) {
  T rest = m_fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
template <class T> INLINE T m_floordiv(T a, T b) {
  if (b == 0) return a / b;
  T rest = m_fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return m_copysign((T)0, a / b);
  T down = m_floor(quotient);
  return quotient - down > (T)0.5 ? down + 1 : down;
}

// ---- exponentials ----
// Arguments that overflow or vanish are handled at the end: until then their values may be anything.

// A float this large has no fraction bits: adding it rounds to an integer, in the low bits of the sum.
constexpr float ROUNDER = 0x1.8p23f;
// ln 2 in two parts; n times the first is exact
constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440054690583e-4f;

// x = n ln 2 + r, |r| <= ln(2)/2; `exponent` is n in the place of a float's exponent
struct Reduced {
  float r;
  uint32_t exponent;
};
INLINE Reduced reduce_exponent(float x) {
  float shifted = fast_fma(x, 1.44269504088896341f, ROUNDER), n = shifted - ROUNDER;
  return {fast_fma(n, -LN2_LOW, fast_fma(n, -LN2_HIGH, x)), bits_as<uint32_t>(shifted) << 23};
}
// x 2^n for |n| <= 126
INLINE float scale_inside(float x, uint32_t exponent) { return x * bits_as<float>(0x3f800000 + exponent); }
// x 2^n, rounded once, for |n| <= 150; `small` says that n < 0
INLINE float scale(float x, uint32_t exponent, bool small) {
  float last = small ? 0x1p-64f : 0x1p64f;
  return x * bits_as<float>(0x7f000000 - bits_as<uint32_t>(last) + exponent) * last;
}
// e^r on [-ln(2)/2, ln(2)/2]
INLINE float exp_near(float r) {
  float tail = polynomial(r, 0.499999930506902f, 0.166665147919480f, 0.0416684568175069f, 0.00836941879479940f,
                          0.00138131423231875f);
  return fast_fma(r * r, tail, r) + 1.f;
}
INLINE float exp_inside(float x) {
  Reduced e = reduce_exponent(x);
  return scale_inside(exp_near(e.r), e.exponent);
}

INLINE float m_exp(float x) {
  Reduced e = reduce_exponent(x);
  float result = scale(exp_near(e.r), e.exponent, x < 0);
  result = x < -104.f ? 0.f : result;
  return x > 88.8f ? INF : result;
}

INLINE float m_exp2(float x) {
  float shifted = x + ROUNDER, r = x - (shifted - ROUNDER);
  // 2^r - 1 - r ln 2 on [-1/2, 1/2]
  float tail = r * r * polynomial(r, 0.240226511811733f, 0.0555035965534436f, 0.00961801843039851f,
                                  0.00133915829014153f, 0.000154732164408344f);
  float high = r * 0.693147182464599609f;
  float low = fast_fma(r, 0.693147182464599609f, -high) + r * -1.90465421212591e-9f;
  float result = scale(tail + low + high + 1.f, bits_as<uint32_t>(shifted) << 23, x < 0);
  result = x < -151.f ? 0.f : result;
  return x >= 128.f ? INF : result;
}

// e^x - 1 for -18 <= x <= 88.8
INLINE float expm1_inside(float x) {
  Reduced e = reduce_exponent(x);
  float q = fast_fma(e.r * e.r, polynomial(e.r, 0.500000006570282f, 0.166665380158116f, 0.0416662665865870f,
                                           0.00836724674886475f, 0.00139475949845381f), e.r);
  // Half of 2^n is always a float, also for the largest n.
  float h = bits_as<float>(0x3f000000 + e.exponent);
  return 2.f * fast_fma(h, q, h - 0.5f);
}
INLINE float m_expm1(float x) {
  float result = expm1_inside(x);
  result = x < -18.f ? -1.f : result;
  result = x > 88.8f ? INF : result;
  return x == 0 ? x : result;
}

// numerator / (a + b), without the error of rounding the sum, and with one division
INLINE float over_sum(float numerator, float a, float b) {
  float sum = a + b, lost = a - (sum - b), inverse = 1.f / sum, ratio = numerator * inverse;
  return fast_fma(fast_fma(-sum, ratio, numerator) - ratio * lost, inverse, ratio);
}

INLINE float m_tanh(float x) {
  float t = expm1_inside(2.f * __builtin_fabsf(x)), result = over_sum(t, t, 2.f);
  result = __builtin_fabsf(x) > 10.f ? 1.f : result;
  return __builtin_fabsf(x) < 3e-4f ? x : __builtin_copysignf(result, x);
}

// As in torch: zero where e^-x overflows, although the true value is a subnormal number.
INLINE float m_sigmoid(float x) { return 1.f / (1.f + m_exp(-x)); }

// ---- logarithms ----
// x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for x > 0
struct Mantissa {
  float f, n;
};
INLINE Mantissa split_float(float x) {
  bool subnormal = x < 0x1p-126f;
  int32_t bits = bits_as<int32_t>(subnormal ? x * 0x1p23f : x) - 0x3f3504f3;  // less the bits of sqrt(1/2)
  float n = (float)(bits >> 23);
  return {bits_as<float>((bits & 0x7fffff) + 0x3f3504f3) - 1.f, subnormal ? n - 23.f : n};
}
// log(1 + f) - f + f^2/2 on [sqrt(1/2) - 1, sqrt(2) - 1]
INLINE float log_tail(float f) {
  return f * f * f *
         polynomial(f, 0.333333126057851f, -0.250000096036454f, 0.200021185365835f, -0.166679955042612f,
                    0.142195545844901f, -0.124055965063698f, 0.118881536091882f, -0.116756042235555f,
                    0.0674660280496921f);
}
// The values of every logarithm at the ends of its domain
INLINE float log_ends(float x, float inside) {
  inside = x == INF ? x : inside;
  inside = x == 0 ? -INF : inside;
  return x < 0 || x != x ? NOT_A_NUMBER : inside;
}

INLINE float m_log(float x) {
  Mantissa m = split_float(x);
  float small = fast_fma(m.n, LN2_LOW, log_tail(m.f)) - 0.5f * m.f * m.f;
  return log_ends(x, fast_fma(m.n, LN2_HIGH, small + m.f));
}

// n * scale + log(1 + f) * factor, with log(1 + f) and factor in two parts each
INLINE float scaled_log(Mantissa m, float high, float low, float scale_high, float scale_low) {
  float square = 0.5f * m.f * m.f, tail = log_tail(m.f);
  float l = m.f - square, rest = (m.f - l) - square + tail;
  float head = l * high, below = fast_fma(l, high, -head) + fast_fma(rest, high, l * low);
  float whole = m.n * scale_high;
  return whole + (head + (below + fast_fma(m.n, scale_high, -whole) + m.n * scale_low));
}
INLINE float m_log2(float x) {
  return log_ends(x, scaled_log(split_float(x), 1.44269502162933f, 1.92596303350001e-8f, 1.f, 0.f));
}
INLINE float m_log10(float x) {
  return log_ends(x, scaled_log(split_float(x), 0.434294492006302f, -1.01030499521926e-8f, 0.301025390625f, 4.605038981195e-6f));
}

INLINE float m_log1p(float x) {
  float u = 1.f + x, lost = x - (u - 1.f);
  float result = m_log(u) + lost / u;
  result = x == INF ? x : result;
  result = x == -1.f ? -INF : result;
  return u == 1.f ? 2.f * (0.5f * x) : result;  // torch halves x first, which shows for subnormal numbers
}

// ---- error function ----
INLINE float m_erf(float x) {
  float a = __builtin_fabsf(x), s = x * x;
  // erf(x)/x - 1 in s = x^2 on |x| <= 0.93
  float near = fast_fma(x, polynomial(s, 0.128379166642340f, -0.376126336971197f, 0.112836939422450f,
                                      -0.0268592707898969f, 0.00520063432038044f, -0.000813743773105238f,
                                      8.34522559487397e-5f), x);
  // log(1 - erf(a)) on 0.92 <= a <= 4, where erf rounds to 1
  float t = a > 4.f ? 4.f : a;
  float tail = exp_inside(polynomial(t, 0.000174683189056012f, -1.12951492414000f, -0.633346919810118f, -0.108280073749224f,
                                0.0251194166711787f, -0.00417105871332136f, 0.000434461676607726f,
                                -2.10949643390908e-5f));
  return a < 0.925f ? near : __builtin_copysignf(1.f - tail, x);
}

// ---- circular functions: reduced and evaluated in double, rounded once at the end ----
// The bits of 2/pi after the point, 32 in a word
constexpr uint64_t TWO_OVER_PI[] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};

// x (2/pi), less a multiple of 4, is x (high + low) for every x of one exponent: bits of 2/pi whose product with all such
// x is a multiple of 4 are left out. `high` has 29 of those that follow, so that its product with a float is exact, `low`
// the next 53. Below 2^20 none is left out, so the first row will do for all smaller exponents.
constexpr int FIRST_EXPONENT = 147, ANGLE_ROWS = 256 - FIRST_EXPONENT;
struct AngleTable {
  double high[ANGLE_ROWS], low[ANGLE_ROWS];
};
constexpr AngleTable angle_table() {
  AngleTable table = {};
  double unit = 1;
  for (int row = 0; row < ANGLE_ROWS - 1; row++) {
    int last = FIRST_EXPONENT + row - 152, skipped = last < 0 ? 0 : last;
    uint64_t window[3] = {};  // 96 bits from there on
    for (int k = 0; k < 3; k++) {
      int word = skipped / 32 + k, shift = skipped % 32;
      window[k] = (TWO_OVER_PI[word] << 32 | TWO_OVER_PI[word + 1]) << shift >> 32;
    }
    if (last > 0) unit /= 2;
    uint64_t low = (window[0] & 7) << 50 | window[1] << 18 | window[2] >> 14;
    table.high[row] = (double)(window[0] >> 3) * unit * 0x1p-29;
    table.low[row] = (double)low * unit * 0x1p-82;
  }
  table.high[ANGLE_ROWS - 1] = 1;  // infinity less infinity is NaN
  return table;
}
constexpr AngleTable ANGLES = angle_table();

// x = quadrant * pi/2 + r, |r| <= pi/4
struct Angle {
  double r;
  int32_t quadrant;
};
INLINE Angle reduce_angle(float x) {
  int32_t above = (int32_t)(bits_as<uint32_t>(x) >> 23 & 255) - FIRST_EXPONENT;
  int64_t row = above < 0 ? 0 : above;  // GCC can gather with an index of 64 bits
  double turns = (double)x * ANGLES.high[row], n = __builtin_rint(turns);
  return {fast_fma((double)x, ANGLES.low[row], turns - n) * 1.5707963267948966, (int32_t)n};
}
INLINE double sin_near(double r) {
  double z = r * r;
  return fast_fma(r * z, polynomial(z, -0.16666666639558203, 0.0083333291439438812, -0.00019839256641124084,
                                    2.7175645115009994e-6), r);
}
INLINE double cos_near(double r) {
  double z = r * r;
  return 1.0 - 0.5 * z + z * z * polynomial(z, 0.041666666619205358, -0.0013888883438500719, 2.4799436424211593e-5,
                                            -2.7203304815435241e-7);
}
INLINE float m_sin(float x) {
  Angle a = reduce_angle(x);
  double s = a.quadrant & 1 ? cos_near(a.r) : sin_near(a.r);
  return x == 0 ? x : (float)(a.quadrant & 2 ? -s : s);
}
INLINE float m_cos(float x) {
  Angle a = reduce_angle(x);
  double s = a.quadrant & 1 ? sin_near(a.r) : cos_near(a.r);
  return (float)((a.quadrant + 1) & 2 ? -s : s);
}
INLINE float m_tan(float x) {
  Angle a = reduce_angle(x);
  double s = sin_near(a.r), c = cos_near(a.r);
  return x == 0 ? x : (float)(a.quadrant & 1 ? -c / s : s / c);
}

// ---- power: 2^(y log2|x|) in double, then the signs and special cases of IEEE 754 ----
INLINE float m_pow(float x, float y) {
  Mantissa m = split_float(__builtin_fabsf(x));
  double f = m.f, s = f / (f + 2.0), z = s * s;
  double log2x = (double)m.n + s * polynomial(z, 2.8853900817779273, 0.9617966939242737, 0.57707801727326445,
                                              0.41219839773808214, 0.3206166969770606, 0.26143412846178495,
                                              0.24303964573559076);
  float a = __builtin_fabsf(x);
  log2x = a == INF ? (double)INF : a == 0 ? -(double)INF : log2x;
  double exponent = (double)y * log2x;
  exponent = exponent > 200.0 ? 200.0 : exponent < -200.0 ? -200.0 : exponent;
  double n = __builtin_rint(exponent), r = exponent - n;
  double mantissa = polynomial(r, 1.0, 0.69314718054476908, 0.24022650695430628, 0.055504109458148769,
                               0.0096181292359930804, 0.0013333446188684893, 0.00015403406763317256,
                               1.5311235403936516e-5, 1.3265056097573353e-6);
  double power = bits_as<double>((int64_t)((uint64_t)((int64_t)n + 1023) << 52));
  float magnitude = (float)(mantissa * power);
  magnitude = x != x || y != y ? NOT_A_NUMBER : magnitude;
  magnitude = a == 1.f && y == y ? 1.f : magnitude;
  bool whole = __builtin_rintf(y) == y, odd = whole && __builtin_rintf(0.5f * y) != 0.5f * y;
  magnitude = x < 0 && x != -INF && !whole ? NOT_A_NUMBER : magnitude;
  magnitude = odd ? __builtin_copysignf(magnitude, x) : magnitude;
  return x == 1.f || y == 0 ? 1.f : magnitude;
}
