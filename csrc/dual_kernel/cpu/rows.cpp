// The recursion along the diagonal is in float64, and what a float32 row brings is rounded from that.
#include "dual_kernel/cpu/rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/parallel.h"

namespace zb::dual_kernel::cpu {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Diagonal {
  double dual, derivative;  // E[s(u)²] and E[s'(u)²], for u of the variance
};

// Also for what is not finite: NaN where the reference has it, as of 0 · infinity.
Diagonal diagonal(const Network& n, double q) {
  switch (n.form) {
    case Form::kIdentity:
      return {q + 0 * q, 1 + 0 * q};
    case Form::kPiecewiseLinear: {
      const double square = n.odd * n.odd + n.even * n.even;
      if (q <= 0) return {0, n.zero_both};
      return {0 * q + square * q, 0 * q + square};
    }
    case Form::kErf: {
      const double s = 1 + n.saturation * q, keep = 1 / s, lose = n.saturation * q / s;
      const double sine = std::sqrt(keep * keep + 2 * lose * keep);
      return {2 / kPi * std::atan2(lose, sine), 4 / kPi / (s * sine)};
    }
    case Form::kGelu: {
      const double s = 1 + q, keep = 1 / s, lose = q / s;
      const double sine = std::sqrt(keep * keep + 2 * lose * keep), root = s * sine;
      const double above = 1 + 2 / kPi * std::atan2(lose, sine), N = 2 * q * q * keep;
      return {0.25 * (q * above + 2 / kPi * N / root),
              0.25 * (above + 2 / kPi * (q / root) * (4 * keep - 1 + N / (root * root)))};
    }
    default: {
      const double plus = std::exp(q - q), minus = std::exp(-2 * q);
      if (n.form == Form::kSinPlusCos) return {plus, plus};
      const double odd = q < 1 ? -0.5 * std::expm1(-2 * q) : (plus - minus) / 2, even = (plus + minus) / 2;
      return n.form == Form::kSin ? Diagonal{odd, even} : Diagonal{even, odd};
    }
  }
}

// Block::extreme of a row that is not plain. Of a variance that is not finite nothing may come but NaN; the
// identity and erf, which saturates, would lose sight of it.
template <class T>
T extreme(const Network& n, double q) {
  const bool lost = n.form == Form::kIdentity || n.form == Form::kErf;
  return lost && !std::isfinite(static_cast<T>(q)) ? std::numeric_limits<T>::quiet_NaN() : T(1);
}

template <class T>
void bring(const Network& n, double q, T* to) {  // [quantities][kBlock]
  const auto put = [to](int64_t which, double value) { to[which * kBlock] = static_cast<T>(value); };
  const double root = q > 0 ? 1 / std::sqrt(q) : q <= 0 ? 0 : q, w = 1 / std::sqrt(1 + n.saturation * q);
  switch (n.form) {
    case Form::kIdentity:
      return;
    case Form::kPiecewiseLinear:
      put(0, root);
      put(1, q <= 0 ? -1 : std::sqrt(q));
      return;
    case Form::kErf:
      put(0, w);
      put(1, w * w);
      return;
    case Form::kGelu:
      put(0, root);
      put(1, q);
      put(2, w);
      put(3, w * w);
      return;
    default:
      put(0, q / 2);
  }
}

// Whether products of what two such rows bring stay well within the range of T.
template <class T>
bool plain(const Network& n, double q) {
  constexpr double kMost = sizeof(T) == 4 ? 1e29 : 1e279;
  if (n.form == Form::kIdentity) return std::isfinite(static_cast<T>(q));
  if (n.form == Form::kPiecewiseLinear || n.form == Form::kGelu) return q > 1 / kMost && q < kMost;
  return q < kMost;
}

inline uint64_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline uint64_t bits_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

template <class T>
T label_of(uint64_t hash) {
  T label;
  std::memcpy(&label, &hash, sizeof label);
  return label;
}

struct Look {
  double square;
  uint64_t hash;
};

// Sums and products in four chains, so that none waits for another; their order is the same for every row.
template <class T>
Look look(const T* x, int64_t step, int64_t count) {
  constexpr int kChains = 4;
  double sums[kChains] = {};
  uint64_t hashes[kChains] = {1, 2, 3, 4};
  int64_t i = 0;
  const auto take = [&](int chain, T value) {
    sums[chain] += static_cast<double>(value) * static_cast<double>(value);
    hashes[chain] = (hashes[chain] ^ bits_of(value + T(0))) * 0x9E3779B97F4A7C15;  // -0 + 0 is 0
    hashes[chain] ^= hashes[chain] >> 29;
  };
  for (; i + kChains <= count; i += kChains) {
    for (int c = 0; c < kChains; ++c) take(c, x[(i + c) * step]);
  }
  for (; i < count; ++i) take(static_cast<int>(i % kChains), x[i * step]);
  uint64_t hash = 0;
  for (uint64_t h : hashes) hash = (hash ^ h) * 0xBF58476D1CE4E5B9, hash ^= hash >> 32;
  return {(sums[0] + sums[1]) + (sums[2] + sums[3]), hash};
}

}  // namespace

Network network_of(const Problem& p) {
  const Activation& a = p.activation;
  Network n{};
  n.form = a.form;
  n.kind = !p.tangent ? Kind::kCovariance : p.first_only ? Kind::kFirstLayer : Kind::kTangent;
  n.depth = p.depth;
  n.features = p.d;
  n.product = p.w2 / static_cast<double>(p.d);
  n.b2 = p.b2;
  n.bias = p.b2 + p.w2 * a.offset * a.offset;
  n.dual = p.w2 * a.scale * a.scale;
  n.derivative = n.dual * a.gain * a.gain;
  n.odd = (1 + a.slope) / 2;
  n.even = (1 - a.slope) / 2;
  n.zero_one = a.zero_one;
  n.zero_both = a.zero_both;
  n.by_cosines = n.form == Form::kPiecewiseLinear && n.b2 == 0 && n.depth > 0;
  n.saturation = (a.form == Form::kErf ? 2 : a.form == Form::kGelu ? 1 : 0) * a.gain * a.gain;
  const double eps = p.dtype == ScalarType::Float ? std::numeric_limits<float>::epsilon()
                                                  : std::numeric_limits<double>::epsilon();
  n.closeness = 8 * eps * static_cast<double>(p.d);
  return n;
}

template <class T>
Rows<T>::Rows(const Network& network, const Matrix<T>& x)
    : x_(x), per_row_(network.depth * quantities(network.form)) {
  const int64_t all = blocks() * kBlock;
  layers_.assign(static_cast<size_t>(all * per_row_), T(1));
  for (auto* each : {&labels_, &squares_, &equal_}) each->assign(static_cast<size_t>(all), T(1));
  extreme_.assign(static_cast<size_t>(all), T(0));
  hash_.assign(static_cast<size_t>(all), 0);
  careful_.assign(static_cast<size_t>(blocks()), 0);
  parallel_for(0, blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) look_at(network, b);
  });
}

template <class T>
void Rows<T>::look_at(const Network& network, int64_t block) {
  const int64_t quantities_here = quantities(network.form);
  for (int64_t i = 0; i < count(block); ++i) {
    const int64_t at = block * kBlock + i;
    const Look found = look(x_.data + at * x_.row, x_.column, network.features);
    hash_[at] = found.hash;
    labels_[at] = label_of<T>(found.hash);
    squares_[at] = static_cast<T>(found.square);
    double q = network.b2 + network.product * static_cast<double>(squares_[at]), t = q;
    T* to = layers_.data() + block * kBlock * per_row_ + i;
    for (int64_t layer = 0; layer < network.depth; ++layer, to += quantities_here * kBlock) {
      if (!plain<T>(network, q)) careful_[block] = 1, extreme_[at] += extreme<T>(network, q);
      bring(network, q, to);
      const Diagonal next = diagonal(network, q);
      q = static_cast<T>(network.bias + network.dual * next.dual);
      const double below = network.derivative * next.derivative * t;
      t = network.kind == Kind::kFirstLayer ? below : q + below;
    }
    equal_[at] = static_cast<T>(network.kind == Kind::kCovariance ? q : t);
  }
}

template class Rows<float>;
template class Rows<double>;

}  // namespace zb::dual_kernel::cpu
