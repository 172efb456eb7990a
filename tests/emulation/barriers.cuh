// What kernels/templates/barriers.cuh offers, on the emulated machine: the same names with the same meaning.
#pragma once

#include "machine.h"

namespace atoffer {

constexpr int kBarrierBytes = 8;

inline void start_barrier(unsigned barrier, int arrivals) { emulation::start_barrier(barrier, arrivals); }
inline void arrive(unsigned barrier) { emulation::arrive(barrier); }
inline void arrive_with_copies(unsigned barrier) { emulation::arrive_after_copies(barrier); }
inline void wait_phase(unsigned barrier, int parity) { emulation::wait_phase(barrier, parity); }
inline void wait_phase_of_cluster(unsigned barrier, int parity) { emulation::wait_phase(barrier, parity); }
inline bool phase_over(unsigned barrier, int parity) { return emulation::phase_over(barrier, parity); }

template <int THREADS>
void synchronise_some(int name) {
    emulation::synchronise(name, THREADS);
}

template <int THREADS>
void announce_some(int name) {
    emulation::announce(name, THREADS);
}

inline void count_released(int* count) {
    emulation::changed();
    ++*count;
    emulation::pause();
}

inline int load_acquired(const int* count) {
    emulation::pause();
    return *static_cast<const volatile int*>(count);
}

}  // namespace atoffer
