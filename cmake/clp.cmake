# clp::clp, COIN-OR's solver of linear programs, which Debian packs without CMake's files.
find_path(CLP_INCLUDE_DIR ClpSimplex.hpp PATH_SUFFIXES coin coin-or REQUIRED)
find_library(CLP_LIBRARY Clp REQUIRED)
find_library(COIN_UTILS_LIBRARY CoinUtils REQUIRED)

add_library(clp::clp INTERFACE IMPORTED)
target_include_directories(clp::clp SYSTEM INTERFACE ${CLP_INCLUDE_DIR})
target_link_libraries(clp::clp INTERFACE ${CLP_LIBRARY} ${COIN_UTILS_LIBRARY})
