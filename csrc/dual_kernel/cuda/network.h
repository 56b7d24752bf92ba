// The network of a call, in the numbers' own type.
#pragma once

#include "dual_kernel/cuda/recursion.h"

namespace zb::dual_kernel {

template <class T>
Network<T> network(const Problem& p) {
  const Activation& act = p.activation;
  const double odd = (1 + act.slope) / 2, even = (1 - act.slope) / 2;
  Network<T> net{};
  net.form = act.form;
  net.tangent = p.tangent, net.first_only = p.first_only, net.depth = p.depth;
  net.w2 = static_cast<T>(p.w2), net.b2 = static_cast<T>(p.b2);
  net.first_w2 = static_cast<T>(p.w2 / static_cast<double>(p.d));
  net.gain2 = static_cast<T>(act.gain * act.gain);
  net.scale2 = static_cast<T>(act.scale * act.scale), net.offset2 = static_cast<T>(act.offset * act.offset);
  net.slope2 = static_cast<T>(act.scale * act.gain * act.scale * act.gain);
  net.odd2 = static_cast<T>(odd * odd), net.even2 = static_cast<T>(even * even);
  net.at_none = static_cast<T>(act.zero_one), net.at_both = static_cast<T>(act.zero_both);
  return net;
}

}  // namespace zb::dual_kernel
