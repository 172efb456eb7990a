// What block attention needs of kernels/templates/cluster.cuh, on the emulated machine: the same names with the same
// meaning.
#pragma once

#include "common.cuh"

namespace atoffer {

constexpr int kRankShift = 24;  // a remote address is a local one, with the block's rank above it

inline void synchronise_cluster() {
    emulation::announce_to_cluster();
    emulation::await_cluster();
}

inline void announce_begun() { emulation::announce_to_cluster(); }
inline void await_begun() { emulation::await_cluster(); }

inline unsigned remote_address(unsigned address, int rank) {
    return address | static_cast<unsigned>(rank) << kRankShift;
}

inline emulation::Remote remote_of(unsigned address) {
    return {static_cast<int>(address >> kRankShift), address & ((1u << kRankShift) - 1)};
}

inline void store_remote(unsigned remote, float4 vector, unsigned barrier) {
    emulation::store_remote(remote_of(remote), &vector, remote_of(barrier));
}

inline void arrive_expecting(unsigned barrier, int bytes) { emulation::arrive_expecting(barrier, bytes); }

}  // namespace atoffer
