// Rings of buffers in shared memory, which some threads fill and others empty.
#pragma once

namespace atoffer {

// Where a reader or writer of a ring of SIZE buffers is; the parity of their phases flips at every round.
template <int SIZE>
struct RingPosition {
    int at = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        at = at + 1 == SIZE ? 0 : at + 1;
        if (at == 0) parity ^= 1;
    }
};

}  // namespace atoffer
