// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each prints to the context's streams and returns the exit code.
#pragma once

#include "cli/context.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/kernel_choice.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rlk::cli {

// The entries of every layer that the filter lets through: a table, or an array of objects.
int list(const Context& context, const ListFilter& filter);

// The same as one page for a browser, into a file; "-": to out.
int list_html(const Context& context, const ListFilter& filter, const std::string& path);

// All that is known of one entry: file, metadata, decoded key, whether its checksum is right.
int show(const Context& context, const std::string& word);

// A text of a kernel, alone on out: the source that is compiled, or what is in an entry's payload.
enum class Code { source, ptx, sass };
int show_code(const Context& context, const std::string& word, Code code);

// What a call of this kernel would do: `ok` for a hit, `failed` for a miss, `wrong_usage` for no
// kernel.
int explain(const Context& context, const std::string& word);

// Hits, compiles, failures and fallbacks by kernel, over all processes. `name_part`: these alone.
int stats(const Context& context, const std::string& name_part);

// The read-write folder, or the file of an entry.
int path(const Context& context, const std::string& word);

// Reads every entry whole, or those that the words may mean. `failed` if one is of no use.
int verify(const Context& context, const std::vector<std::string>& words);

struct PruneOptions {
  std::optional<std::string> max_size;    // as RLK_CACHE_SIZE
  std::optional<std::string> older_than;  // "30d"
  bool dry_run = false;
};

// Removes entries of the read-write layer by size and age; neither given: down to the budget.
int prune(const Context& context, const PruneOptions& options);

struct RemoveOptions {
  std::vector<std::string> words;
  bool all_matching = false;  // else a word that means several is an error
};

// Removes entries of the read-write layer by name or key.
int remove(const Context& context, const RemoveOptions& options);

// Removes every entry of the read-write layer. Asks a person who is not sure.
int clear(const Context& context, bool is_sure);

struct WarmCommand {
  KernelChoice choice;
  std::vector<std::string> traces;
  std::optional<int> cuda_major;
  int num_jobs = 0;  // 0: one a core
  bool is_reproducible = false;
};

// Compiles what the models' calls would ask for. 128 + the signal's number if it was cancelled.
int warm(const Context& context, const WarmCommand& asked);

struct TuneCommand {
  std::string op = "linear_logp";
  std::vector<std::string> models;            // what read_model_shape() takes; none: usual ones
  std::optional<std::int64_t> vocab, hidden;  // with no model: both or none
  std::vector<std::string> dtypes = {"bf16"};
  int device = 0;
};

// Times every tile on the card and stores the fastest for later calls. `failed` where there is
// nothing to tune or two tiles do not give the same bits.
int tune(const Context& context, const TuneCommand& asked);

struct ExportCommand {
  std::string pack;
  std::vector<std::string> archs, ops;  // none: all
  std::optional<std::string> since;     // "30d": used within
  std::vector<std::string> words;       // names or keys; none: all
};

// Writes the sound entries of the layers but the built-in one into a pack.
int export_pack(const Context& context, const ExportCommand& asked);

struct ImportCommand {
  std::string pack;
  std::optional<std::string> sha256;
};

// Stores a pack's entries into the read-write layer, all of them or, if one is bad, none.
int import_pack(const Context& context, const ImportCommand& asked);

struct DoctorOptions {
  bool strict = false;  // what works less well than it could is a failure too
  KernelChoice choice;  // kernels that must be there
};

// Whether rlk would work here, and how. `failed` if something is broken.
int doctor(const Context& context, const DoctorOptions& options);

}  // namespace rlk::cli
