#include "trainer/comm/mpi/monitor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {

// The same program on the same kind of machine at both ends.
struct Monitor::Packet {
  enum Type : uint32_t { kHeartbeat, kQuestion, kAnswer, kReportQuestion, kReportAnswer, kFailure };
  static constexpr uint32_t kMagic = 0x54534d31;
  static constexpr int kMostWaiting = 16, kMostText = 1200;
  static constexpr size_t kHeaderBytes = 48 + 4 * kMostWaiting;

  uint32_t magic = kMagic;
  Type type = kHeartbeat;
  uint64_t secret = 0;
  int32_t sender = 0;
  int32_t subject = 0;  // the rank that a report is about
  int32_t code = 0;     // of a failure
  int32_t is_cause = 0;
  int64_t age_ms = -1;  // of a report; negative where there is none
  int32_t waiting = 0;
  int32_t text_bytes = 0;
  std::array<int32_t, kMostWaiting> waiting_for = {};
  std::array<char, kMostText> text = {};

  void SetText(std::string_view from) {
    text_bytes = static_cast<int32_t>(std::min<size_t>(from.size(), kMostText));
    std::copy_n(from.begin(), text_bytes, text.begin());
  }
  std::string Text() const { return std::string(text.data(), text_bytes); }
  void SetState(const PeerState& state) {
    SetText(state.text);
    waiting = std::min<int>(state.waiting_for.size(), kMostWaiting);
    std::copy_n(state.waiting_for.begin(), waiting, waiting_for.begin());
  }
  PeerState State(int ranks) const {
    PeerState state = {PeerState::kAnswers, Text(), {}};
    for (int i = 0; i < waiting; ++i) {
      if (waiting_for[i] >= 0 && waiting_for[i] < ranks)
        state.waiting_for.push_back(waiting_for[i]);
    }
    return state;
  }
  size_t bytes() const { return kHeaderBytes + text_bytes; }
  // False for anything that is not a whole packet of this run.
  bool Valid(ssize_t received, uint64_t our_secret, int ranks) const {
    return received >= static_cast<ssize_t>(kHeaderBytes) && magic == kMagic &&
           secret == our_secret && sender >= 0 && sender < ranks && subject >= 0 &&
           subject < ranks && waiting >= 0 && waiting <= kMostWaiting && text_bytes >= 0 &&
           text_bytes <= kMostText && received == static_cast<ssize_t>(bytes());
  }
};

namespace {

constexpr auto kHeartbeat = std::chrono::seconds(1);
constexpr auto kTick = std::chrono::milliseconds(100);
// For a datagram there and back to a process that has nothing else to do with its monitor thread.
constexpr auto kAnswerTime = std::chrono::milliseconds(300);
// Datagrams can be lost.
constexpr int kSpreads = 3;

uint64_t Hash(std::string_view text, uint64_t seed) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return seed;
}

uint64_t InodeOf(const char* path) {
  struct stat info = {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

uint64_t MachineId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(file, boot_id);
  return Hash(
      absl::StrCat(boot_id, "/", InodeOf("/proc/self/ns/net"), "/", InodeOf("/proc/self/ns/pid")),
      0xcbf29ce484222325);
}

void FillAddresses(MonitorAddress* address) {
  gethostname(address->host.data(), address->host.size() - 1);
  address->machine = MachineId();
  address->pid = getpid();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (const ifaddrs* at = list; at != nullptr && address->addresses < 4; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_UP) == 0) continue;
    address->ipv4[address->addresses++] =
        reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr;
  }
  freeifaddrs(list);
}

// 'T' where the process is stopped; 0 where that cannot be read.
char ProcessState(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(") ");
  return name_end == text.npos || name_end + 2 >= text.size() ? 0 : text[name_end + 2];
}

std::string SecondsAgo(int64_t ms) {
  return absl::StrCat(ms / 1000, ".", ms % 1000 / 100, " s ago");
}

bool Better(const Failure& a, const Failure& b) {
  return a.is_cause != b.is_cause ? a.is_cause : a.rank < b.rank;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Monitor>> Monitor::Create() {
  std::unique_ptr<Monitor> monitor(new Monitor);
  FillAddresses(&monitor->address_);
  monitor->socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(any);
  if (monitor->socket_ < 0 ||
      bind(monitor->socket_, reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0 ||
      getsockname(monitor->socket_, reinterpret_cast<sockaddr*>(&any), &length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no socket to watch other ranks with: ", std::strerror(errno)));
  }
  monitor->address_.port = ntohs(any.sin_port);
  monitor->thread_ = std::thread([m = monitor.get()] { m->Loop(); });
  return monitor;
}

Monitor::~Monitor() {
  Stop();
  if (socket_ >= 0) close(socket_);
}

void Monitor::Start(int rank, std::vector<MonitorAddress> peers, uint64_t secret,
                    std::function<PeerState()> activity) {
  rank_ = rank;
  peers_ = std::move(peers);
  secret_ = secret;
  activity_ = std::move(activity);
  reports_.resize(peers_.size());
  started_.store(true, std::memory_order_release);
}

void Monitor::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::vector<int> Monitor::Guardians(int rank) const {
  const int size = static_cast<int>(peers_.size());
  std::vector<int> guardians;
  for (int i = 1; i <= 2 && i < size; ++i) guardians.push_back((rank + i) % size);
  return guardians;
}

sockaddr_in Monitor::AddressOf(int rank) const {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(peers_[rank].port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (SameMachine(rank)) return address;
  // Of several networks, the one that is shared: the longest common prefix.
  int best = -1;
  for (int i = 0; i < std::min<int>(peers_[rank].addresses, 4); ++i) {
    for (int j = 0; j < std::min<int>(address_.addresses, 4); ++j) {
      const int common = std::countl_zero(ntohl(peers_[rank].ipv4[i]) ^ ntohl(address_.ipv4[j]));
      if (common > best) {
        best = common;
        address.sin_addr.s_addr = peers_[rank].ipv4[i];
      }
    }
  }
  return address;
}

void Monitor::Loop() {
  Clock::time_point next_heartbeat = Clock::now();
  while (!stop_) {
    pollfd ready = {socket_, POLLIN, 0};
    const int some = poll(&ready, 1, static_cast<int>(kTick / std::chrono::milliseconds(1)));
    CheckWatch();
    if (!started_.load(std::memory_order_acquire)) {
      // Packets of ranks that were faster wait in the socket.
      if (some > 0) std::this_thread::sleep_for(kTick / 10);
      continue;
    }
    if (some > 0) {
      Packet packet;
      sockaddr_in from = {};
      socklen_t length = sizeof(from);
      const ssize_t received = recvfrom(socket_, &packet, sizeof(packet), MSG_DONTWAIT,
                                        reinterpret_cast<sockaddr*>(&from), &length);
      if (packet.Valid(received, secret_, peers_.size())) Answer(packet, from);
    }
    if (Clock::now() >= next_heartbeat) {
      next_heartbeat = Clock::now() + kHeartbeat;
      SendHeartbeats();
    }
    SpreadFailure();
  }
}

void Monitor::Answer(const Packet& packet, const sockaddr_in& from) {
  Packet answer;
  answer.secret = secret_;
  answer.sender = rank_;
  answer.subject = packet.subject;
  switch (packet.type) {
    case Packet::kHeartbeat: {
      std::lock_guard<std::mutex> lock(mutex_);
      reports_[packet.sender] = {true, Clock::now(), packet.Text()};
      return;
    }
    case Packet::kFailure:
      Learn({static_cast<absl::StatusCode>(packet.code), packet.Text(), packet.sender,
             packet.is_cause != 0},
            false);
      return;
    case Packet::kQuestion:
      answer.type = Packet::kAnswer;
      answer.SetState(activity_());
      break;
    case Packet::kReportQuestion: {
      answer.type = Packet::kReportAnswer;
      std::lock_guard<std::mutex> lock(mutex_);
      const LastReport& report = reports_[packet.subject];
      if (!report.known) break;
      answer.age_ms = (Clock::now() - report.at) / std::chrono::milliseconds(1);
      answer.SetText(report.text);
      break;
    }
    default:
      return;
  }
  sendto(socket_, &answer, answer.bytes(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&from),
         sizeof(from));
}

void Monitor::SendHeartbeats() {
  Packet packet;
  packet.secret = secret_;
  packet.sender = packet.subject = rank_;
  packet.SetState(activity_());
  for (int guardian : Guardians(rank_)) {
    const sockaddr_in to = AddressOf(guardian);
    sendto(socket_, &packet, packet.bytes(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
           sizeof(to));
  }
}

void Monitor::Learn(Failure failure, bool own) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool first = !failed_.load();
  if (own && !first) return;
  if (own) spreads_left_ = kSpreads;
  if (!first && !Better(failure, failure_)) return;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

void Monitor::Fail(Failure failure) {
  Learn(std::move(failure), true);
  SpreadFailure();
}

void Monitor::SpreadFailure() {
  Packet packet;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (spreads_left_ == 0) return;
    --spreads_left_;
    // A better one is spread by its own finder.
    if (failure_.rank != rank_) return;
    packet.code = static_cast<int32_t>(failure_.code);
    packet.is_cause = failure_.is_cause ? 1 : 0;
    packet.SetText(failure_.message);
  }
  packet.type = Packet::kFailure;
  packet.secret = secret_;
  packet.sender = packet.subject = rank_;
  for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
    if (i == rank_) continue;
    const sockaddr_in to = AddressOf(i);
    sendto(socket_, &packet, packet.bytes(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
           sizeof(to));
  }
}

Failure Monitor::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Monitor::Watch(std::optional<absl::Duration> limit, std::string message) {
  std::lock_guard<std::mutex> lock(mutex_);
  watch_until_.reset();
  if (limit) watch_until_ = Clock::now() + absl::ToChronoMilliseconds(*limit);
  watch_message_ = std::move(message);
}

void Monitor::CheckWatch() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!watch_until_ || Clock::now() < *watch_until_) return;
  if (!watch_message_.empty()) {
    watch_message_ += "\n";
    if (write(STDERR_FILENO, watch_message_.data(), watch_message_.size()) < 0) _exit(1);
  }
  _exit(1);
}

// One socket per question: connected, it hears of a closed port.
struct Monitor::Question {
  int rank = 0;      // asked
  size_t about = 0;  // index into the ranks of Ask()
  bool report = false;
  int socket = -1;
  bool answered = false, refused = false;
  Packet answer;

  Question(int rank, size_t about, bool report) : rank(rank), about(about), report(report) {}
  Question(Question&& other) noexcept
      : rank(other.rank), about(other.about), report(other.report), socket(other.socket) {
    other.socket = -1;
  }
  ~Question() {
    if (socket >= 0) close(socket);
  }
  bool open() const { return socket >= 0 && !answered && !refused; }

  void Send(const Packet& packet, const sockaddr_in& to) {
    socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return;
    if (connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 ||
        send(socket, &packet, packet.bytes(), MSG_DONTWAIT) < 0) {
      refused = errno == ECONNREFUSED;
    }
  }
  void Receive(uint64_t secret, int ranks) {
    const ssize_t received = recv(socket, &answer, sizeof(answer), MSG_DONTWAIT);
    if (received < 0) {
      refused = errno == ECONNREFUSED;
    } else {
      answered = answer.Valid(received, secret, ranks);
    }
  }
};

std::string Monitor::Describe(int rank) const {
  return absl::StrCat("(process ", peers_[rank].pid, " on ", peers_[rank].host.data(), ")");
}

PeerState Monitor::Missing(int rank, bool gone, const std::optional<std::string>& last) const {
  std::string text = Describe(rank);
  if (gone) {
    absl::StrAppend(&text, " has gone: its process has ended");
  } else {
    absl::StrAppend(&text, " does not answer");
    if (SameMachine(rank) && ProcessState(peers_[rank].pid) == 'T') {
      absl::StrAppend(&text, ": its process is stopped");
    }
  }
  if (last) absl::StrAppend(&text, "; ", *last);
  return {gone ? PeerState::kGone : PeerState::kSilent, std::move(text), {}};
}

std::vector<PeerState> Monitor::Ask(std::span<const int> ranks) {
  const int size = static_cast<int>(peers_.size());
  std::vector<Question> questions;
  questions.reserve(ranks.size() * 3);
  for (size_t i = 0; i < ranks.size(); ++i) {
    questions.emplace_back(ranks[i], i, false);
    for (int guardian : Guardians(ranks[i])) questions.emplace_back(guardian, i, true);
  }
  for (Question& question : questions) {
    Packet packet;
    packet.type = question.report ? Packet::kReportQuestion : Packet::kQuestion;
    packet.secret = secret_;
    packet.sender = rank_;
    packet.subject = ranks[question.about];
    question.Send(packet, AddressOf(question.rank));
  }
  // Reports matter only where a rank itself is silent.
  const auto silent = [&](size_t about) {
    return std::any_of(questions.begin(), questions.end(), [&](const Question& q) {
      return q.about == about && !q.report && !q.answered;
    });
  };
  const Clock::time_point until = Clock::now() + kAnswerTime;
  while (true) {
    std::vector<pollfd> sockets;
    std::vector<Question*> open;
    for (Question& question : questions) {
      if (!question.open() || (question.report && !silent(question.about))) continue;
      sockets.push_back({question.socket, POLLIN, 0});
      open.push_back(&question);
    }
    const auto left = (until - Clock::now()) / std::chrono::milliseconds(1);
    if (open.empty() || left <= 0) break;
    if (poll(sockets.data(), sockets.size(), static_cast<int>(left)) <= 0) continue;
    for (size_t i = 0; i < open.size(); ++i) {
      if (sockets[i].revents != 0) open[i]->Receive(secret_, size);
    }
  }

  std::vector<PeerState> states(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Question* asked = nullptr;
    const Packet* report = nullptr;
    for (const Question& question : questions) {
      if (question.about != i) continue;
      if (!question.report) {
        asked = &question;
      } else if (question.answered && question.answer.age_ms >= 0 &&
                 (report == nullptr || question.answer.age_ms < report->age_ms)) {
        report = &question.answer;
      }
    }
    if (asked->answered) {
      states[i] = asked->answer.State(size);
      continue;
    }
    std::optional<std::string> last;
    if (report != nullptr)
      last = absl::StrCat(SecondsAgo(report->age_ms), " it reported: ", report->Text());
    states[i] = Missing(ranks[i], asked->refused, last);
  }
  return states;
}

}  // namespace tessera
