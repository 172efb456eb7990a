// What kernels/templates/cluster.cuh offers, on the emulated machine: the same names with the same meaning.
#pragma once

#include "common.cuh"

namespace atoffer {

inline void announce_to_cluster() { emulation::announce_to_cluster(); }
inline void await_cluster() { emulation::await_cluster(); }
inline void synchronise_cluster() {
    announce_to_cluster();
    await_cluster();
}

// A remote address is a local one, with the block's rank above it.
inline unsigned remote_address(unsigned address, int rank) { return address | static_cast<unsigned>(rank) << 24; }

inline void store_remote(unsigned remote, float4 vector) {
    std::memcpy(emulation::remote_bytes(remote & 0xffffff, remote >> 24, 16), &vector, 16);
}

}  // namespace atoffer
