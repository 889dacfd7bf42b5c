// A rank without tensors, for the tests of supervision: in every step all ranks meet at rank 0 over
// TCP, as those of a real run wait for each other. Arguments are key=value:
//   steps=N step_ms=M      how long it runs
//   peers=blame|plain|none what a rank does that loses a peer: blames it, just fails, has no peers
//   fault=RANK:STEP:ACTION what happens there: see act()
//   gate=0                 steps are begun without asking; SIGTERM does what it does by default
//   pids=DIRECTORY         leaves a file named after its process id
//   spell=1                prints a line per step, also to stderr
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "run/heartbeat.h"

namespace {

using meshwright::Heartbeat;

struct PeerLost : std::runtime_error {
  explicit PeerLost(int rank)
      : std::runtime_error("connection with rank " + std::to_string(rank) + " lost"), peer(rank) {}
  int peer;
};

int from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return std::atoi(text);
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class Meeting {
 public:
  Meeting(int rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size), -1) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(from_environment("MASTER_PORT")));
    ::inet_pton(AF_INET, std::getenv("MASTER_ADDR"), &address.sin_addr);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (rank == 0) {
      const int server = ::socket(AF_INET, SOCK_STREAM, 0);
      const int yes = 1;
      ::setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (::bind(server, generic, sizeof address) != 0 || ::listen(server, size) != 0) {
        throw std::runtime_error("rank 0 cannot listen on its port");
      }
      for (int i = 1; i < size; ++i) {
        const int peer = ::accept(server, nullptr, nullptr);
        char id = 0;
        if (::read(peer, &id, 1) != 1) throw PeerLost(i);
        peers_[static_cast<std::size_t>(id)] = peer;
      }
      return;
    }
    for (int attempt = 0; attempt < 2000; ++attempt) {
      const int server = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(server, generic, sizeof address) == 0) {
        peers_[0] = server;
        const char id = static_cast<char>(rank);
        if (::write(server, &id, 1) != 1) throw PeerLost(0);
        return;
      }
      ::close(server);
      sleep_ms(5);
    }
    throw PeerLost(0);
  }

  void meet() {
    if (rank_ == 0) {
      for (std::size_t i = 1; i < peers_.size(); ++i) receive(static_cast<int>(i));
      for (std::size_t i = 1; i < peers_.size(); ++i) send(static_cast<int>(i));
    } else {
      send(0);
      receive(0);
    }
  }

 private:
  void send(int peer) {
    const char byte = 1;
    if (::send(peers_[static_cast<std::size_t>(peer)], &byte, 1, MSG_NOSIGNAL) != 1) {
      throw PeerLost(peer);
    }
  }
  void receive(int peer) {
    char byte = 0;
    if (::read(peers_[static_cast<std::size_t>(peer)], &byte, 1) != 1) throw PeerLost(peer);
  }

  int rank_;
  std::vector<int> peers_;
};

void act(const std::string& action, std::optional<Heartbeat>& heartbeat) {
  if (action == "kill") ::raise(SIGKILL);
  if (action == "segv") {
    ::signal(SIGSEGV, SIG_DFL);  // Sanitizers have handlers of their own.
    ::raise(SIGSEGV);
  }
  if (action == "stop") ::raise(SIGSTOP);
  if (action == "exit0") std::_Exit(0);
  if (action == "exit3") {
    std::fputs("first line\nthe disk is full\n\n", stderr);
    std::_Exit(3);
  }
  if (action == "user") {
    heartbeat->fail("the plan is for 4 ranks, not 2", 2);
    std::_Exit(2);
  }
  if (action == "nan") throw std::runtime_error("the loss is\nnan");
  if (action == "terminate") {
    std::thread([] { throw std::runtime_error("from a thread"); }).join();
  }
  if (action == "mute") heartbeat.reset();  // Alive, but its thread is not heard of.
  if (action == "mute" || action == "hang") {
    while (true) sleep_ms(1000);
  }
  if (action == "chatter") {
    for (int i = 0; i < 20000; ++i) std::fprintf(stderr, "line %d of much\n", i);
    std::_Exit(4);
  }
}

struct Settings {
  int steps = 5, step_ms = 10;
  std::string peers = "blame";
  bool gate = true, spell = false;
  int fault_rank = -1, fault_step = 0;
  std::string fault;
};

void run(int rank, int size, const Settings& settings, std::optional<Heartbeat>& heartbeat) {
  std::optional<Meeting> meeting;
  if (settings.peers != "none") meeting.emplace(rank, size);
  for (int step = 0; step < settings.steps; ++step) {
    if (settings.gate && !heartbeat->begin_step(step)) break;
    heartbeat->where({.step = step,
                      .phase = "forward",
                      .chunk = 1,
                      .micro_batch = 2,
                      .instruction = 17,
                      .kind = "linear",
                      .name = "layers.1.mlp.up"});
    sleep_ms(settings.step_ms);
    if (rank == settings.fault_rank && step == settings.fault_step) act(settings.fault, heartbeat);
    heartbeat->where({.step = step, .phase = "meeting"});
    if (meeting) meeting->meet();
    if (settings.spell) {
      std::printf("step %d of rank %d\n", step, rank);
      std::fflush(stdout);
      std::fprintf(stderr, "rank %d says %d\n", rank, step);
    }
  }
  heartbeat->finish();
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = from_environment("RANK");
  const int size = from_environment("WORLD_SIZE");
  Settings settings;
  std::map<std::string, std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    arguments[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const auto number = [&](const char* key, int otherwise) {
    return arguments.count(key) != 0 ? std::atoi(arguments[key].c_str()) : otherwise;
  };
  settings.steps = number("steps", 5);
  settings.step_ms = number("step_ms", 10);
  settings.gate = number("gate", 1) != 0;
  settings.spell = number("spell", 0) != 0;
  if (arguments.count("peers") != 0) settings.peers = arguments["peers"];
  if (arguments.count("fault") != 0) {
    char action[32] = {};
    std::sscanf(arguments["fault"].c_str(), "%d:%d:%31s", &settings.fault_rank,
                &settings.fault_step, action);
    settings.fault = action;
  }
  if (arguments.count("pids") != 0) {
    std::ofstream(arguments["pids"] + "/" + std::to_string(::getpid())) << rank;
  }
  if (arguments.count("facts") != 0) {
    std::printf("core %d threads %s wait %s\n", ::sched_getcpu(), std::getenv("OMP_NUM_THREADS"),
                std::getenv("OMP_WAIT_POLICY"));
  }
  if (settings.fault == "stop_early" && rank == settings.fault_rank) ::raise(SIGSTOP);

  std::optional<Heartbeat> heartbeat(std::in_place, rank);
  try {
    run(rank, size, settings, heartbeat);
  } catch (const PeerLost& e) {
    heartbeat->fail(e.what(), 1, settings.peers == "blame" ? e.peer : -1);
    return 1;
  } catch (const std::exception& e) {
    heartbeat->fail(e.what());
    return 1;
  }
  return 0;
}
