// One rank of a run: started by `meshwright run` (local processes), or by torchrun, Slurm or mpirun
// through it, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Its only
// argument is the file of the job.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/blas_core.h"
#include "engine/comm.h"
#include "rank/profile_rank.h"
#include "rank/run_rank.h"

namespace {

using meshwright::Error;

std::string text_of(const char* name, const char* fallback) {
  const char* text = std::getenv(name);
  if (text != nullptr) return text;
  if (fallback != nullptr) return fallback;
  throw Error(fmt::format("{} is not set", name), "environment",
              "start ranks with `meshwright run`, torchrun, srun or mpirun");
}

int number_of(const char* name, const char* fallback, int least, int most) {
  const std::string text = text_of(name, fallback);
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(fmt::format("{} must be {}..{}: '{}'", name, least, most, text), "environment");
  }
  return value;
}

int run(int argc, char** argv) {
  if (argc != 2) throw Error("takes the file of a job", {}, "it is started by meshwright run");
  const std::string path = argv[1];
  const meshwright::Json json = meshwright::parse_json(meshwright::read_file(path, 1 << 20), path);
  meshwright::Rendezvous r;
  r.size = number_of("WORLD_SIZE", nullptr, 1, 1 << 20);
  r.rank = number_of("RANK", nullptr, 0, r.size - 1);
  r.master_address = text_of("MASTER_ADDR", r.size == 1 ? "127.0.0.1" : nullptr);
  r.master_port = number_of("MASTER_PORT", "29500", 1, 65535);
  // torchrun's agent serves a store of its own on that port.
  if (text_of("TORCHELASTIC_USE_AGENT_STORE", "") == "True") ++r.master_port;
  r.interface = text_of("MESHWRIGHT_INTERFACE", "");
  if (json.is_object() &&
      json.value("format", meshwright::Json()) == meshwright::kProfileJobFormat) {
    return meshwright::profile_rank(meshwright::profile_job_from_json(json, path), r);
  }
  return meshwright::run_rank(meshwright::job_from_json(json, path), r);
}

int fail(const char* kind, const char* message, int code) {
  const char* rank = std::getenv("RANK");
  const std::string who = fmt::format("rank {}: ", rank == nullptr ? "?" : rank);
  const std::string_view words = message;
  std::fputs(fmt::format("meshwright: {}{}{}\n", who, kind,
                         words.starts_with(who) ? words.substr(who.size()) : words)
                 .c_str(),
             stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  meshwright::start_again_for_blas(argv);
  int code = 70;
  try {
    code = run(argc, argv);
  } catch (const meshwright::PeerLost& e) {
    code = fail("", e.what(), 1);
  } catch (const Error& e) {
    code = fail("error: ", e.what(), 2);
  } catch (const std::exception& e) {
    code = fail("internal error: ", e.what(), 70);
  }
  // Not through static destructors: Gloo's threads may still wait for peers that are gone.
  std::fflush(stdout);
  std::_Exit(code);
}
