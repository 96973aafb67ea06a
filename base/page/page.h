#ifndef TESSERA_BASE_PAGE_PAGE_H_
#define TESSERA_BASE_PAGE_PAGE_H_

// Pages of HTML that show data. The page is a template that html_page() (tools/build_rules) makes a
// constant of; its script finds the data as `data`.

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace tessera {

// Where a template wants its data: in a <script type="application/json">, once.
inline constexpr std::string_view kPageData = "{{DATA}}";

// Returns the page with the data. Texts may come from anybody: none can end the script element or
// begin a tag or a comment. Bytes that are not UTF-8 become U+FFFD; numbers that JSON cannot
// express become null. Scripts must show texts as text nodes; element() of head.html does.
// Precondition: the template has kPageData.
std::string FillPage(std::string_view page, const nlohmann::json& data);

}  // namespace tessera

#endif  // TESSERA_BASE_PAGE_PAGE_H_
