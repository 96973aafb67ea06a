#ifndef TESSERA_TRAINER_DATA_DEFAULT_CORPUS_H_
#define TESSERA_TRAINER_DATA_DEFAULT_CORPUS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// A shell pattern for the default training text: the Perl manual, some 9 MB of English in *.pod
// files, from Debian's package perl-doc. NotFound, naming the package to install, when it is
// missing. `root`: the folder of the Perl versions, for tests.
absl::StatusOr<std::string> DefaultCorpusPattern(const std::string& root = "/usr/share/perl");

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_DEFAULT_CORPUS_H_
