//! The merging cursor against a plain model: many layers, both directions, seeks in between.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::cursor::MergeCursor;
use crate::error::Result;
use crate::layer::LayerCursor;
use crate::random::Random;

type Layer = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A layer's cursor over a map.
struct MapCursor {
    layer: Layer,
    key: Option<Vec<u8>>,
}

impl LayerCursor for MapCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.key = self.layer.range(key.to_vec()..).next().map(|(key, _)| key.clone());
        Ok(())
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        let end = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        self.key = self.layer.range((Bound::Unbounded, end)).next_back().map(|(key, _)| key.clone());
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if let Some(key) = self.key.take() {
            let rest = (Bound::Excluded(key), Bound::Unbounded);
            self.key = self.layer.range(rest).next().map(|(key, _)| key.clone());
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        match self.key.take() {
            Some(key) => self.seek_before(Some(&key)),
            None => Ok(()),
        }
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn loaded(&self) -> Result<Option<&[u8]>> {
        Ok(self.layer[self.key.as_ref().unwrap()].as_deref())
    }

    fn is_deletion(&self) -> bool {
        self.layer[self.key.as_ref().unwrap()].is_none()
    }
}

/// Short keys, some of which are others' beginnings or have a zero byte behind.
fn key(random: &mut Random) -> Vec<u8> {
    let length = random.below(4) as usize;
    (0..length).map(|_| [0, 1, 255][random.below(3) as usize]).collect()
}

#[test]
fn it_goes_where_a_plain_map_goes() {
    for seed in 0..2000 {
        let mut random = Random(seed);
        let layers: Vec<Layer> = (0..1 + random.below(4))
            .map(|layer| {
                (0..random.below(12))
                    .map(|_| (key(&mut random), (random.below(3) > 0).then(|| vec![layer as u8])))
                    .collect()
            })
            .collect();
        // The newest layer is first, so it is laid over the others last.
        let mut model = Layer::new();
        layers.iter().rev().for_each(|layer| model.extend(layer.clone()));
        let sources = layers.into_iter().map(|layer| Box::new(MapCursor { layer, key: None }) as Box<_>);
        let mut cursor = MergeCursor::new(sources.collect());
        let mut expected = MapCursor { layer: model, key: None };
        for step in 0..40 {
            let key = key(&mut random);
            match random.below(10) {
                0 => (cursor.seek(&key).unwrap(), expected.seek(&key).unwrap()),
                1 => (cursor.seek_before(Some(&key)).unwrap(), expected.seek_before(Some(&key)).unwrap()),
                2 => (cursor.seek_before(None).unwrap(), expected.seek_before(None).unwrap()),
                3 => {
                    cursor.seek_bound(Bound::Excluded(&key)).unwrap();
                    expected.seek(&[&key[..], &[0]].concat()).unwrap();
                    skip(&mut cursor, &mut expected, true)
                }
                4 => {
                    cursor.seek_back_bound(Bound::Included(&key)).unwrap();
                    expected.seek_before(Some(&[&key[..], &[0]].concat())).unwrap();
                    skip(&mut cursor, &mut expected, false)
                }
                5..=7 => {
                    cursor.next().unwrap();
                    expected.next().unwrap();
                    if step % 2 == 0 { skip(&mut cursor, &mut expected, true) } else { ((), ()) }
                }
                _ => {
                    cursor.prev().unwrap();
                    expected.prev().unwrap();
                    if step % 2 == 0 { skip(&mut cursor, &mut expected, false) } else { ((), ()) }
                }
            };
            assert_eq!(cursor.key(), expected.key(), "seed {seed}, step {step}");
            let record = expected.key().map(|key| (key, expected.loaded().unwrap()));
            let record = record.and_then(|(key, value)| Some((key, value?)));
            assert_eq!(cursor.record().unwrap(), record, "seed {seed}, step {step}");
        }
    }
}

fn skip(cursor: &mut MergeCursor, expected: &mut MapCursor, forward: bool) -> ((), ()) {
    cursor.skip_deleted().unwrap();
    while expected.key.is_some() && expected.is_deletion() {
        if forward { expected.next().unwrap() } else { expected.prev().unwrap() }
    }
    ((), ())
}
