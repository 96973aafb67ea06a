#include "trainer/data/default_corpus.h"

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<std::string> DefaultCorpusPattern(const std::string& root) {
  // Other packages contain a few .pod files too; only perl-doc has the tutorial on regular
  // expressions.
  const std::string witness = absl::StrCat(root, "/*/pod/perlretut.pod");
  if (!Glob(witness).ok()) {
    return absl::NotFoundError(absl::StrCat("the default corpus is not installed (nothing matches ",
                                            witness,
                                            "): apt-get install perl-doc, or give --input"));
  }
  return absl::StrCat(root, "/*/pod/*.pod");
}

}  // namespace tessera
