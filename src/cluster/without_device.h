#pragma once

#include "cluster/cluster.h"

namespace meshwright {

/// The cluster after `device` is lost: the leaf is gone, and with it every domain and host that has
/// no other device; those behind it count one less. What is left keeps its links. Throws Error when
/// it is the only device.
Cluster without_device(const Cluster& cluster, DeviceId device);

}  // namespace meshwright
