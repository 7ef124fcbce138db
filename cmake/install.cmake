# The programs people run, as one target (`ninja programs`), and what is installed or packed.
include(GNUInstallDirs)

add_custom_target(programs)
foreach(program winnow winnow-fixtures)
  if(TARGET ${program})
    add_dependencies(programs ${program})
  endif()
endforeach()

if(TARGET winnow)
  if(WINNOW_NATIVE)
    install(TARGETS winnow COMPONENT winnow)
  else()
    # A portable archive brings the libraries that other distributions have in other versions.
    set_target_properties(winnow PROPERTIES
      INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/winnow")
    install(TARGETS winnow COMPONENT winnow RUNTIME_DEPENDENCIES
      PRE_INCLUDE_REGEXES libfmt libspdlog libhwy libClp libCoinUtils libbz2 liblapack libblas
                          libgfortran libquadmath
      PRE_EXCLUDE_REGEXES .*
      RUNTIME COMPONENT winnow
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/winnow COMPONENT winnow)
  endif()
endif()

install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT winnow OPTIONAL)

string(TOLOWER ${CMAKE_SYSTEM_NAME} system)
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME winnow-${PROJECT_VERSION}-${system}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL winnow)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
include(CPack)
