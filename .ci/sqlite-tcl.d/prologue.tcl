# Runs one of SQLite's test files on Bygone: testfixture prologue.tcl TEST-FILE RESULT-FILE
#
# In the environment: BYGONE_TCL_VFS, the library that `vfs.c` makes, and what that reads there. With BYGONE_STOCK=1 the
# file runs on SQLite's own VFS, to compare.
#
# The result file has a line for each thing: `tests N`, `failed NAME`, `early MESSAGE` if the file broke off.
#
# Where tests look at the files of databases past SQLite, the commands of Tcl that do so answer for SQL databases of
# Bygone's as they would for files.

namespace eval bygone {
  variable test_file [file normalize [lindex $argv 0]]
  variable result_file [file normalize [lindex $argv 1]]
  variable stock [expr {[info exists ::env(BYGONE_STOCK)] && $::env(BYGONE_STOCK)}]
  variable default_lost 0
}

proc bygone::report {early} {
  variable result_file
  set out [::bygone::real_open $result_file w]
  # A file that is for another system does not even begin.
  if {[info commands ::set_test_counter] eq ""} {
    puts $out "tests 0"
    ::close $out
    return
  }
  puts $out "tests [set_test_counter count]"
  foreach name [set_test_counter fail_list] { puts $out "failed [string map {\n { }} $name]" }
  if {$early ne ""} { puts $out "early [string map {\n { }} $early]" }
  ::close $out
}

# The VFS is the default again after SQLite was shut down, which forgets that.
proc bygone::ensure_default {} {
  variable default_lost
  # Where a test makes SQLite fail to begin, it is too early.
  if {$default_lost} {
    set default_lost [catch {bygone default}]
  }
}

proc bygone::begin {} {
  sqlite3 loader :memory:
  loader enable_load_extension 1
  loader eval {SELECT load_extension($::env(BYGONE_TCL_VFS), 'sqlite3_bygonetcl_init')}
  loader close
  load $::env(BYGONE_TCL_VFS) Bygonetcl
  bygone use [::file join [pwd] bygone.dir]
  bygone default

  trace add execution sqlite3_shutdown leave {set ::bygone::default_lost 1; list}
  trace add execution sqlite3_initialize leave {::bygone::ensure_default; list}
  rename ::sqlite3 ::bygone::real_sqlite3
  proc ::sqlite3 {args} {
    ::bygone::ensure_default
    uplevel 1 ::bygone::real_sqlite3 $args
  }
  foreach command {file open glob hexio_read hexio_write md5file} {
    rename ::$command ::bygone::real_$command
    interp alias {} ::$command {} ::bygone::$command
  }
}

# Whether this is a database of Bygone's; files that lie there in the system are not.
proc bygone::is_database {name} {
  expr {$name ne "" && [::bygone exists $name] && ![real_file isfile $name]}
}

proc bygone::file {what args} {
  set name [lindex $args 0]
  switch -- $what {
    exists - isfile - readable - writable { if {[is_database $name]} { return 1 } }
    size { if {[is_database $name]} { return [::bygone size $name] } }
    isdirectory { if {[is_database $name]} { return 0 } }
    attributes { if {[is_database $name]} { error "a database has no attributes" } }
    delete - del {
      foreach name $args {
        if {![string match -* $name]} { ::bygone delete $name }
      }
    }
    copy - rename {
      lassign [lrange $args end-1 end] from to
      if {[real_file isdirectory $to]} { set to [real_file join $to [real_file tail $from]] }
      if {[is_database $from]} {
        if {[is_database $to] && [lindex $args 0] ne "-force"} {
          error "error copying \"$from\" to \"$to\": file already exists"
        }
        ::bygone delete $to
        real_file delete -force $to
        ::bygone write $to 0 [::bygone read $from 0 -1]
        if {$what eq "rename"} { ::bygone delete $from }
        return
      }
      ::bygone delete $to
    }
  }
  uplevel 1 ::bygone::real_file [list $what] $args
}

# Makes a file of what a database is.
proc bygone::copied {name path} {
  set copy [real_open $path wb]
  puts -nonewline $copy [::bygone read $name 0 -1]
  ::close $copy
  return $path
}

# Who reads a database as a file reads a copy. Who writes has a file of the system's, which becomes the database when
# it is opened the next time.
proc bygone::open {name args} {
  if {[is_database $name]} {
    set mode [lindex $args 0]
    set is_read [expr {$mode in {"" r rb RDONLY}}]
    set path [copied $name [expr {$is_read ? "$name.bygone-copy" : $name}]]
    if {!$is_read} { ::bygone delete $name }
    set channel [real_open $path {*}$args]
    if {$is_read} { real_file delete $path }
    return $channel
  }
  real_open $name {*}$args
}

proc bygone::glob {args} {
  set found [::bygone::real_glob -nocomplain {*}[lsearch -all -inline -not -exact $args -nocomplain]]
  if {[lsearch $args -directory] < 0 && [lsearch $args -dir] < 0} {
    foreach pattern $args {
      if {[string match -* $pattern]} continue
      foreach name [::bygone names] {
        if {![string match */* $pattern]} {
          if {[real_file dirname $name] ne [pwd]} continue
          set name [real_file tail $name]
        }
        if {[string match $pattern $name] && $name ni $found} { lappend found $name }
      }
    }
  }
  set found [lsearch -all -inline -not $found {*bygone.dir}]
  if {[llength $found] == 0 && "-nocomplain" ni $args} { error "no files matched glob pattern \"$args\"" }
  return $found
}

proc bygone::hexio_read {name offset amount} {
  if {![is_database $name]} { return [real_hexio_read $name $offset $amount] }
  string toupper [binary encode hex [::bygone read $name $offset $amount]]
}

proc bygone::hexio_write {name offset data} {
  if {![is_database $name]} { return [real_hexio_write $name $offset $data] }
  set bytes [binary decode hex $data]
  ::bygone write $name $offset $bytes
  string length $bytes
}

proc bygone::md5file {name args} {
  if {![is_database $name]} { return [real_md5file $name {*}$args] }
  set path [copied $name $name.bygone-copy]
  set sum [real_md5file $path {*}$args]
  real_file delete $path
  return $sum
}

# What SQLite's scripts define, and is to be otherwise here.
proc bygone::after_source {name} {
  variable stock
  switch -- $name {
    tester.tcl {
      proc ::finalize_testing {} {
        catch {db close}
        catch {db2 close}
        catch {db3 close}
        ::bygone::report ""
        exit 0
      }
      if {!$stock && [info exists ::env(BYGONE_RESERVED)]} {
        proc ::nonzero_reserved_bytes {} { return 1 }
      }
    }
    lock_common.tcl {
      # Of clients in several processes, and of clients in one, the second.
      set body [info body ::do_multiclient_test]
      proc ::do_multiclient_test {varname script} [string map {{[info exists ::G(valgrind)]} 1} $body]
    }
  }
}

rename source bygone::real_source
proc source {args} {
  set name [file tail [lindex $args end]]
  set known [info exists ::bygone::sourced($name)]
  set ::bygone::sourced($name) 1
  uplevel 1 ::bygone::real_source $args
  if {!$known} { ::bygone::after_source $name }
}

if {$bygone::stock} {
  interp alias {} bygone::real_open {} open
} else {
  bygone::begin
}

# As SQLite's own suite `veryquick`: fewer rounds of what is repeated.
set G(isquick) 1
# Files in `ext` find the others from here.
set argv0 $bygone::test_file
set argv [list --verbose=1]
if {[catch {uplevel #0 [list source $bygone::test_file]} message]} {
  puts "\nbroke off: $::errorInfo"
  bygone::report $message
} else {
  bygone::report ""
}
exit 0
