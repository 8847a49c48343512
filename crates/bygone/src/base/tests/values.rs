//! Keys and values of the sizes at which the format turns.

use super::*;

#[test]
fn values_of_all_sizes_come_back() {
    let lens = [
        0,
        1,
        1999,
        2000,
        2001,
        4063,
        4064,
        4065,
        8 * 4064,
        8 * 4064 + 1,
        100 << 10,
        254 * 4064,
        254 * 4064 + 1,
        8 * 254 * 4064,
        8 * 254 * 4064 + 1,
        40 << 20,
    ];
    let mut fixture = Fixture::new();
    fixture.update(1, (0..).zip(lens).map(|(i, len)| (key(i), Some(value(i, len)))), 0);
    fixture = fixture.reopen();
    let mut cursor = fixture.base.cursor(1);
    cursor.seek(b"").unwrap();
    for (i, len) in (0..).zip(lens) {
        let expected = value(i, len);
        assert!(fixture.get(1, &key(i)) == Some(expected.clone()), "{len} bytes");
        assert_eq!(cursor.key(), Some(key(i).as_slice()));
        assert!(cursor.value().unwrap() == Some(expected.as_slice()), "{len} bytes at the cursor");
        cursor.next().unwrap();
    }
    assert!(
        contents(&fixture.base, 1).unwrap()
            == (0..).zip(lens).map(|(i, len)| (key(i), value(i, len))).collect()
    );
    fixture.verify_without_leaks();
    fixture.update(1, (0..lens.len() as u64).map(|i| (key(i), None)), 0);
    fixture.verify_without_leaks();
}

#[test]
fn a_value_of_one_page_takes_one_page() {
    let mut fixture = Fixture::new();
    fixture.update(1, [(key(1), Some(value(1, 4064)))], 0);
    assert_eq!(fixture.base.tables()[0].1.overflow_pages, 1);
    fixture.update(1, [(key(1), Some(value(1, 4065)))], 0);
    assert_eq!(fixture.base.tables()[0].1.overflow_pages, 2);
}

#[test]
fn other_large_values_stay_where_they_are() {
    let mut fixture = Fixture::new();
    fixture.update(1, (0..100).map(|i| (key(i), Some(value(i, 50_000)))), 0);
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    rebuild.apply(1, &mut MapUpdates::new([(key(50), Some(value(1, 50_000)))]), usize::MAX).unwrap();
    // 13 parts, a page of pointers, one leaf or two, and the root.
    assert!(rebuild.written_pages() <= 17, "{} pages", rebuild.written_pages());
    fixture.base = rebuild.finish(2, 0, || (b"").to_vec()).unwrap();
    assert!(fixture.get(1, &key(50)) == Some(value(1, 50_000)));
    assert!(fixture.get(1, &key(51)) == Some(value(51, 50_000)));
    fixture.verify_without_leaks();
}

#[test]
fn a_replaced_large_value_is_given_up_whole() {
    let mut fixture = Fixture::new();
    for len in [20 << 20, 10, 3 << 20, 5000, 2000] {
        fixture.update(1, [(key(1), Some(value(len, len as usize)))], 0);
        assert!(fixture.get(1, &key(1)) == Some(value(len, len as usize)));
        fixture.verify_without_leaks();
    }
    assert_eq!(fixture.base.tables()[0].1.overflow_pages, 0);
}

#[test]
fn keys_of_the_greatest_length_that_share_long_prefixes() {
    let long = |i: u64| [vec![b'k'; 1024 - 16], key(i)].concat();
    let mut fixture = Fixture::new();
    let model: BTreeMap<_, _> = (0..3000).map(|i| (long(i * 3), value(i, (i % 2001) as usize))).collect();
    fixture.update(1, model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), 0);
    assert_equals(&fixture.base, &Model::from([(1, model.clone())]), &mut Random(3));
    fixture.verify_without_leaks();
    assert_eq!(fixture.get(1, &long(1)), None);
}

#[test]
fn keys_of_the_greatest_length_that_share_nothing() {
    let mut random = Random(77);
    let mut fixture = Fixture::new();
    let model: BTreeMap<_, _> =
        (0..2000).map(|i| (value(random.next(), 1024), value(i, (i % 2001) as usize))).collect();
    fixture.update(1, model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))), 0);
    assert_equals(&fixture.base, &Model::from([(1, model.clone())]), &mut random);
    fixture.verify_without_leaks();
}

#[test]
fn keys_whose_heads_are_equal_are_told_apart() {
    // The empty key empties the common prefix, so that all others have the same first four bytes.
    let mut fixture = Fixture::new();
    let mut keys = vec![Vec::new()];
    keys.extend((0..20).map(|i| [vec![b'a'; 4], vec![0; i]].concat()));
    keys.extend((0..20u8).map(|i| vec![b'a', b'a', b'a', b'a', b'b', i]));
    fixture.update(1, keys.iter().map(|key| (key.clone(), Some(key.clone()))), 0);
    keys.iter().for_each(|key| assert_eq!(fixture.get(1, key).as_ref(), Some(key)));
    for absent in [b"a".as_slice(), b"aaa", b"aaaab", b"aaaa\x01", b"aaaab\x14", b"b"] {
        assert_eq!(fixture.get(1, absent), None);
    }
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    let fixture = Fixture::new();
    let mut rebuild = fixture.store.rebuild(&fixture.base).unwrap();
    let mut updates = MapUpdates::new([(vec![0; 1025], Some(Vec::new()))]);
    let error = rebuild.apply(1, &mut updates, usize::MAX).unwrap_err();
    assert!(matches!(error, crate::Error::TooLarge { what: "key", size: 1025, limit: 1024 }));
}
