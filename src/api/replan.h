#pragma once

#include <atomic>
#include <string>

#include "api/request.h"

namespace meshwright {

struct Replan {
  std::string path;     ///< Of the new plan file.
  std::string summary;  ///< "tp2 pp1 mbs4 on 3 devices, 12.1 ms a step".
};

/// Plans again what the plan file `plan` asks for, on its cluster without device `lost` (a rank is
/// a device): on as many of the remaining devices as some legal layout that fits can use. Model,
/// batch, training, transforms, cost model and memory limit are the file's; pins and a plan space
/// that were given when it was made are not in it and do not hold. Writes `directory`/`name`.json,
/// and the smaller cluster beside it. Throws Error when no plan is found.
Replan plan_without(const std::string& plan, int lost, const std::string& directory,
                    const std::string& name, const std::atomic<bool>* stop = nullptr);

}  // namespace meshwright
