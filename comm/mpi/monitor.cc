#include "comm/mpi/monitor.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/threads.h"

namespace tessera {

// Both ends run the same program on the same kind of machine.
struct Monitor::Packet {
  enum Type : uint32_t { kHeartbeat, kQuestion, kAnswer, kReportQuestion, kReportAnswer, kFailure };
  static constexpr uint32_t kMagic = 0x54534d31;
  static constexpr int kMaxWaiting = 16, kMaxText = 1200;
  static constexpr size_t kHeaderBytes = 56 + 4 * kMaxWaiting;

  uint32_t magic = kMagic;
  Type type = kHeartbeat;
  uint64_t secret = 0;
  int32_t sender = 0;
  int32_t subject = 0;  // the rank that a report is about
  int32_t code = 0;     // of a failure
  int32_t is_cause = 0;
  int64_t age_ms = -1;  // of a report; negative without a report
  int32_t waiting = 0;
  int32_t text_bytes = 0;
  int32_t path = 0;  // path of a query to its receiver; the answer repeats it
  int32_t unused = 0;
  std::array<int32_t, kMaxWaiting> waiting_for = {};
  std::array<char, kMaxText> text = {};

  void SetText(std::string_view from) {
    text_bytes = static_cast<int32_t>(std::min<size_t>(from.size(), kMaxText));
    std::copy_n(from.begin(), text_bytes, text.begin());
  }
  std::string Text() const { return std::string(text.data(), text_bytes); }
  void SetState(const PeerState& state) {
    SetText(state.text);
    waiting = std::min<int>(state.waiting_for.size(), kMaxWaiting);
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
  // Returns false for anything but a complete packet of this run.
  bool Valid(ssize_t received, uint64_t our_secret, int ranks) const {
    return received >= static_cast<ssize_t>(kHeaderBytes) && magic == kMagic &&
           secret == our_secret && sender >= 0 && sender < ranks && subject >= 0 &&
           subject < ranks && waiting >= 0 && waiting <= kMaxWaiting && text_bytes >= 0 &&
           text_bytes <= kMaxText && path >= 0 && received == static_cast<ssize_t>(bytes());
  }
};

namespace {

constexpr auto kHeartbeat = std::chrono::seconds(1);
constexpr auto kTick = std::chrono::milliseconds(100);
// Time for a datagram's round trip to a process whose monitor thread is otherwise idle.
constexpr auto kAnswerTime = std::chrono::milliseconds(300);
// Failures are sent several times because datagrams can be lost.
constexpr int kSpreads = 3;
// Rounds of queries to ranks that have not answered yet, and ranks queried per tick: hundreds of
// ranks that all ask at once would lose most answers.
constexpr int kIntroductions = 5;
constexpr int kIntroductionsPerTick = 64;

uint64_t Hash(std::string_view text, uint64_t seed) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return seed;
}

uint64_t InodeOf(const char* path) {
  struct stat info = {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

uint64_t MachineId() {
  return Hash(
      absl::StrCat(BootId(), "/", InodeOf("/proc/self/ns/net"), "/", InodeOf("/proc/self/ns/pid")),
      0xcbf29ce484222325);
}

MonitorAddress OwnAddress() {
  MonitorAddress address;
  gethostname(address.host.data(), address.host.size() - 1);
  address.machine = MachineId();
  address.pid = getpid();
  const std::vector<HostAddress> own = OwnAddresses(MonitorAddress::kMaxAddresses / 2);
  address.address_count = static_cast<uint16_t>(own.size());
  std::copy(own.begin(), own.end(), address.addresses.begin());
  return address;
}

std::span<const HostAddress> AddressesOf(const MonitorAddress& address) {
  return std::span(address.addresses)
      .first(std::min<size_t>(address.address_count, MonitorAddress::kMaxAddresses));
}

// 'T' where the process is stopped; 0 where its state cannot be read.
char ProcessState(int pid) {
  const std::string text = ReadWholeFile(absl::StrCat("/proc/", pid, "/stat")).value_or("");
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
  monitor->address_ = OwnAddress();
  TESSERA_ASSIGN_OR_RETURN(monitor->socket_, DatagramSocket::Open(/*hear_refusals=*/false));
  monitor->address_.port = monitor->socket_->port();
  TESSERA_ASSIGN_OR_RETURN(monitor->thread_, StartThread([m = monitor.get()] { m->Loop(); }));
  return monitor;
}

Monitor::~Monitor() { Stop(); }

void Monitor::Start(int rank, std::vector<MonitorAddress> peers, uint64_t secret,
                    std::function<PeerState()> activity) {
  rank_ = rank;
  peers_ = std::move(peers);
  secret_ = secret;
  activity_ = std::move(activity);
  {
    const MutexLock lock(&mutex_);
    reports_.resize(peers_.size());
    for (const MonitorAddress& peer : peers_) paths_.push_back(MakePaths(peer));
  }
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

std::vector<Monitor::Path> Monitor::MakePaths(const MonitorAddress& peer) const {
  std::vector<HostAddress> addresses = AddressesToTry(AddressesOf(peer), AddressesOf(address_));
  if (peer.machine == address_.machine) {
    // Loopback comes first, but is not the only path: clones of a virtual machine share their ids.
    const std::vector<HostAddress> loopback = LoopbackAddresses();
    addresses.insert(addresses.begin(), loopback.begin(), loopback.end());
  }
  std::vector<Path> paths;
  for (const HostAddress& address : addresses) paths.push_back({{address, peer.port}});
  return paths;
}

bool Monitor::SameMachine(int rank) const {
  if (peers_[rank].machine != address_.machine) return false;
  const std::vector<HostAddress> loopback = LoopbackAddresses();
  const MutexLock lock(&mutex_);
  return std::any_of(paths_[rank].begin(), paths_[rank].end(), [&](const Path& path) {
    return path.answered && std::count(loopback.begin(), loopback.end(), path.to.address) > 0;
  });
}

void Monitor::SendTo(int rank, Packet& packet, const DatagramSocket& socket) const {
  std::vector<Path> paths;
  {
    const MutexLock lock(&mutex_);
    paths = paths_[rank];
  }
  const bool known =
      std::any_of(paths.begin(), paths.end(), [](const Path& path) { return path.answered; });
  for (size_t i = 0; i < paths.size(); ++i) {
    if (known && !paths[i].answered) continue;
    packet.path = static_cast<int32_t>(i);
    socket.Send(&packet, packet.bytes(), paths[i].to);
  }
}

void Monitor::NoteAnswer(const Packet& packet) {
  const MutexLock lock(&mutex_);
  std::vector<Path>& paths = paths_[packet.sender];
  if (packet.path < static_cast<int>(paths.size())) paths[packet.path].answered = true;
}

bool Monitor::IsGone(int rank, const DatagramSocket::Endpoint& refused) const {
  const MutexLock lock(&mutex_);
  return std::any_of(paths_[rank].begin(), paths_[rank].end(),
                     [&](const Path& path) { return path.answered && path.to == refused; });
}

void Monitor::Loop() {
  Clock::time_point next_heartbeat = Clock::now();
  while (!stop_) {
    pollfd ready = {socket_->fd(), POLLIN, 0};
    const int some = poll(&ready, 1, static_cast<int>(kTick / std::chrono::milliseconds(1)));
    CheckWatch();
    if (!started_.load(std::memory_order_acquire)) {
      // Packets of faster ranks wait in the socket.
      if (some > 0) std::this_thread::sleep_for(kTick / 10);
      continue;
    }
    if (some > 0) {
      Packet packet;
      DatagramSocket::Endpoint from;
      const ssize_t received = socket_->Receive(&packet, sizeof(packet), &from);
      if (packet.Valid(received, secret_, peers_.size())) Answer(packet, from);
    }
    Introduce();
    if (Clock::now() >= next_heartbeat) {
      next_heartbeat = Clock::now() + kHeartbeat;
      SendHeartbeats();
    }
    SpreadFailure();
  }
}

// Queries every rank once, to learn on which paths its answers arrive.
void Monitor::Introduce() {
  if (introductions_ == kIntroductions || Clock::now() < next_introduction_) return;
  const int size = static_cast<int>(peers_.size());
  Packet packet;
  packet.type = Packet::kQuestion;
  packet.secret = secret_;
  packet.sender = rank_;
  for (int asked = 0; asked < kIntroductionsPerTick && introduced_ < size - 1; ++introduced_) {
    // Each rank starts with its neighbour, so that not all query the same rank.
    packet.subject = (rank_ + 1 + introduced_) % size;
    {
      const MutexLock lock(&mutex_);
      const std::vector<Path>& paths = paths_[packet.subject];
      if (std::any_of(paths.begin(), paths.end(), [](const Path& p) { return p.answered; }))
        continue;
    }
    SendTo(packet.subject, packet, *socket_);
    ++asked;
  }
  const bool round_ends = introduced_ == size - 1;
  if (round_ends) {
    introduced_ = 0;
    ++introductions_;
  }
  next_introduction_ = Clock::now() + (round_ends ? kHeartbeat : kTick);
}

void Monitor::Answer(const Packet& packet, const DatagramSocket::Endpoint& from) {
  Packet answer;
  answer.secret = secret_;
  answer.sender = rank_;
  answer.path = packet.path;
  answer.subject = packet.subject;
  switch (packet.type) {
    case Packet::kHeartbeat: {
      const MutexLock lock(&mutex_);
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
      const MutexLock lock(&mutex_);
      const LastReport& report = reports_[packet.subject];
      if (!report.known) break;
      answer.age_ms = (Clock::now() - report.at) / std::chrono::milliseconds(1);
      answer.SetText(report.text);
      break;
    }
    case Packet::kAnswer:
      NoteAnswer(packet);
      return;
    default:
      return;
  }
  socket_->Send(&answer, answer.bytes(), from);
}

void Monitor::SendHeartbeats() {
  Packet packet;
  packet.secret = secret_;
  packet.sender = packet.subject = rank_;
  packet.SetState(activity_());
  for (int guardian : Guardians(rank_)) SendTo(guardian, packet, *socket_);
}

void Monitor::Learn(Failure failure, bool own) {
  const MutexLock lock(&mutex_);
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
    const MutexLock lock(&mutex_);
    if (spreads_left_ == 0) return;
    --spreads_left_;
    // The rank that found a failure is the one that spreads it.
    if (failure_.rank != rank_) return;
    packet.code = static_cast<int32_t>(failure_.code);
    packet.is_cause = failure_.is_cause ? 1 : 0;
    packet.SetText(failure_.message);
  }
  packet.type = Packet::kFailure;
  packet.secret = secret_;
  packet.sender = packet.subject = rank_;
  for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
    if (i != rank_) SendTo(i, packet, *socket_);
  }
}

Failure Monitor::failure() const {
  const MutexLock lock(&mutex_);
  return failure_;
}

void Monitor::Watch(std::optional<absl::Duration> limit, std::string message) {
  const MutexLock lock(&mutex_);
  watch_until_.reset();
  if (limit) watch_until_ = Clock::now() + absl::ToChronoMilliseconds(*limit);
  watch_message_ = std::move(message);
}

void Monitor::CheckWatch() {
  std::string message;
  {
    const MutexLock lock(&mutex_);
    if (!watch_until_ || Clock::now() < *watch_until_) return;
    message = watch_message_;
  }
  if (!message.empty()) WriteBounded(STDERR_FILENO, Printable(message) + "\n", kLastMessageTime);
  _exit(1);
}

struct Monitor::Question {
  int rank = 0;      // the rank that is queried
  size_t about = 0;  // index into the ranks of Ask()
  bool report = false;
  bool answered = false, refused = false;
  Packet answer;

  bool open() const { return !answered && !refused; }
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

// Collects the answers that have arrived so far.
void Monitor::CollectAnswers(const DatagramSocket& socket, std::span<const int> ranks,
                             std::vector<Question>* questions) {
  Packet packet;
  DatagramSocket::Endpoint from;
  for (ssize_t received; (received = socket.Receive(&packet, sizeof(packet), &from)) >= 0;) {
    if (!packet.Valid(received, secret_, static_cast<int>(peers_.size()))) continue;
    const bool report = packet.type == Packet::kReportAnswer;
    if (!report && packet.type != Packet::kAnswer) continue;
    NoteAnswer(packet);
    for (Question& question : *questions) {
      if (question.report == report && question.rank == packet.sender &&
          ranks[question.about] == packet.subject && !question.answered) {
        question.answered = true;
        question.answer = packet;
      }
    }
  }
  while (const std::optional<DatagramSocket::Endpoint> refused = socket.NextRefusal()) {
    for (Question& question : *questions) {
      if (IsGone(question.rank, *refused)) question.refused = true;
    }
  }
}

PeerState Monitor::Judge(int rank, size_t about, const std::vector<Question>& questions) const {
  const Question* asked = nullptr;
  const Packet* report = nullptr;
  for (const Question& question : questions) {
    if (question.about != about) continue;
    if (!question.report) {
      asked = &question;
    } else if (question.answered && question.answer.age_ms >= 0 &&
               (report == nullptr || question.answer.age_ms < report->age_ms)) {
      report = &question.answer;
    }
  }
  if (asked->answered) return asked->answer.State(static_cast<int>(peers_.size()));
  std::optional<std::string> last;
  if (report != nullptr)
    last = absl::StrCat(SecondsAgo(report->age_ms), " it reported: ", report->Text());
  return Missing(rank, asked->refused, last);
}

std::vector<PeerState> Monitor::Ask(std::span<const int> ranks) {
  std::vector<Question> questions;
  questions.reserve(ranks.size() * 3);
  for (size_t i = 0; i < ranks.size(); ++i) {
    questions.push_back({.rank = ranks[i], .about = i, .report = false});
    for (int guardian : Guardians(ranks[i])) {
      questions.push_back({.rank = guardian, .about = i, .report = true});
    }
  }
  // A separate socket receives the errors of closed ports. Without it, no rank would answer.
  const absl::StatusOr<std::unique_ptr<DatagramSocket>> socket =
      DatagramSocket::Open(/*hear_refusals=*/true);
  for (const Question& question : questions) {
    if (!socket.ok()) break;
    Packet packet;
    packet.type = question.report ? Packet::kReportQuestion : Packet::kQuestion;
    packet.secret = secret_;
    packet.sender = rank_;
    packet.subject = ranks[question.about];
    SendTo(question.rank, packet, **socket);
  }
  // Reports count only where the rank itself does not answer.
  const auto silent = [&](size_t about) {
    return std::any_of(questions.begin(), questions.end(), [&](const Question& q) {
      return q.about == about && !q.report && !q.answered;
    });
  };
  const Clock::time_point until = Clock::now() + kAnswerTime;
  while (socket.ok()) {
    const bool open = std::any_of(questions.begin(), questions.end(), [&](const Question& q) {
      return q.open() && (!q.report || silent(q.about));
    });
    const auto left = (until - Clock::now()) / std::chrono::milliseconds(1);
    if (!open || left <= 0) break;
    pollfd ready = {(*socket)->fd(), POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(left)) > 0) CollectAnswers(**socket, ranks, &questions);
  }

  std::vector<PeerState> states;
  for (size_t i = 0; i < ranks.size(); ++i) states.push_back(Judge(ranks[i], i, questions));
  return states;
}

}  // namespace tessera
