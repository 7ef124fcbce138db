#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/handover.h"
#include "kv/kv_file.h"
#include "model/model_hash.h"
#include "ops/page_planes.h"
#include "policy/arm.h"

namespace winnow {
namespace {

// Before a long prompt is read for nothing.
void CheckTarget(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    Throw(ErrorKind::kResource, "cannot write {}: its folder: {}", path, std::strerror(errno));
  }
  // The file takes the name of what is there: never that of a device, a pipe, a link or a folder.
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    Throw(ErrorKind::kResource, "cannot write {}: it is there, and no plain file", path);
  }
}

void RefuseForLoaded(const Request& request) {
  const auto refuse = [&](bool condition, const char* what) {
    if (condition) {
      Throw(ErrorKind::kUsage, "the KV file {} takes the prompt's place: {}", request.load_kv,
            what);
    }
  };
  refuse(!request.tokens.empty() || !request.spans.empty(), "there can be no other");
  refuse(!request.save_kv.empty(), "it is not saved again");
  refuse(!request.forced_tokens.empty(), "its first token cannot be forced");
  refuse(request.watches_prompt(), "there is no prefill to watch");
  refuse(ParseArm(request.arm).prefill_fingerprint != 0,
         "the arm cannot prune it (the one that wrote the file can)");
}

}  // namespace

const Hash128& Engine::Impl::ModelHash() {
  if (!model_hash.has_value()) {
    model_hash = options.model_path.empty() ? Hash128{} : HashModelFile(options.model_path);
  }
  return *model_hash;
}

std::optional<HandoverNote> Engine::Impl::PrepareHandover(Request* request) {
  if (!request->load_kv.empty()) {
    const std::string& path = request->load_kv;
    RefuseForLoaded(*request);
    KvFileInfo info = InspectKvFile(path, ModelHash(), config.n_layers, layout);
    HandoverNote note = ReadHandover(info, config, path);
    request->tokens = std::move(info.header.tokens);
    return note;
  }
  if (!request->save_kv.empty()) {
    CheckTarget(request->save_kv);
    ModelHash();  // now, so that its time is not the transfer's
    request->max_new_tokens = 1;
  }
  return std::nullopt;
}

// The first token was drawn; what is stored is the prompt's.
void Engine::Impl::SavePages(Sequence* sequence) {
  Sequence& s = *sequence;
  const int pruned_layer = s.pruning == nullptr ? 0 : s.pruning->record.applied_layer;
  const HandoverNote note = {.first_token = s.generated.front(),
                             .arm = s.arm.resolved,
                             .dense_tokens = std::min({s.n_prompt(), s.n_whole, s.sparse_from}),
                             .pruned_layer = pruned_layer,
                             .kept_tokens = s.status.n_prompt,
                             .drop_kv = pruned_layer > 0 && s.pruner->policy->params.drop_kv};
  const Clock::time_point start = Clock::now();
  const KvFileBytes bytes =
      SaveKvFile(s.request.save_kv, s.kv,
                 {.model = ModelHash(), .tokens = s.request.tokens, .note = ToText(note)});
  const double seconds = SecondsSince(start);
  s.kv_transfer = AccountTransfer(note, s.n_prompt(), config, layout, bytes);
  s.kv_transfer->path = s.request.save_kv;
  s.kv_transfer->seconds = seconds;
}

// All at once, in place of a prefill: other sequences wait as they would for a quantum.
void Engine::Impl::LoadPages(Sequence* sequence) {
  Sequence& s = *sequence;
  const std::string& path = s.request.load_kv;
  const Clock::time_point start = Clock::now();
  const KvFileInfo info = InspectKvFile(path, ModelHash(), config.n_layers, layout);
  EvictFor(info.bytes.pages);
  LoadedKv loaded = LoadKvFile(path, ModelHash(), config.n_layers, &pages);
  // What was checked when the request was submitted must be what is there now.
  if (loaded.header.tokens != s.request.tokens || ReadHandover(info, config, path) != *s.handover) {
    Throw(ErrorKind::kInput, "the KV file {} was replaced while its request waited", path);
  }
  s.kv = std::move(loaded.kv);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    UpdatePlanes(*threads, &s.kv, layer, s.kv.first_resident(layer), s.kv.n_tokens(layer));
  }
  const double seconds = SecondsSince(start);
  s.kv_transfer = AccountTransfer(*s.handover, s.n_prompt(), config, layout, loaded.bytes);
  s.kv_transfer->path = path;
  s.kv_transfer->seconds = seconds;

  s.positions.resize(s.n_prompt());
  std::iota(s.positions.begin(), s.positions.end(), 0);
  if (s.handover->dense_tokens < s.n_prompt()) s.n_whole = s.handover->dense_tokens;
  if (s.policy != nullptr) s.sparse_from = s.n_prompt();
  s.prefill_started = true;
  RememberPrefix(sequence, s.n_prompt());
  s.status.phase = Phase::kDecode;
  s.sampler.Replay(s.handover->first_token);
  AddToken(sequence, s.handover->first_token);
}

}  // namespace winnow
